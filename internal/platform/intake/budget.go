package intake

import (
	"math"
	"slices"
	"sync"
	"sync/atomic"
)

// Budget bounds the memory that peers can make the process use, on all ports together. Bounds of single classes do not
// suffice: each may be right, and their sum too much. Each class has reserved bytes, so that no class starves another.
// Beyond its reserve, a class uses the common bytes. For example, with a total of 100 and reserves of 30 and 20, the
// first class may use up to 80 while the second one is within its reserve. Taking and rejecting are a few atomic
// operations.
type Budget struct {
	total  int64
	common atomic.Int64 // bytes free for any class; negative if too much was added

	mu      sync.Mutex
	classes []*Class
}

// NewBudget returns a budget of some bytes, without classes.
func NewBudget(total int64) *Budget {
	b := &Budget{total: total}
	b.common.Store(total)
	return b
}

// Class returns a new class with reserved bytes.
func (b *Budget) Class(name string, reserved int64) *Class {
	return b.add(&Class{Name: name, reserved: reserved})
}

func (b *Budget) add(c *Class) *Class {
	c.budget = b
	b.common.Add(-c.reserved)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.classes = append(b.classes, c)
	return c
}

// Counted returns a class that is bounded elsewhere: this many bytes are reserved for it, and held returns how many it
// uses. Take and Add must not be called.
func (b *Budget) Counted(name string, reserved int64, held func() int64) *Class {
	return b.add(&Class{Name: name, reserved: reserved, counted: held})
}

// Total returns the bytes of the budget.
func (b *Budget) Total() int64 { return b.total }

// Classes returns the classes.
func (b *Budget) Classes() []*Class {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.classes)
}

// Held returns the bytes of all classes.
func (b *Budget) Held() (n int64) {
	for _, c := range b.Classes() {
		n += c.Held()
	}
	return n
}

// Class is a kind of memory that peers can make the process use. A nil Class has room for everything, and counts
// nothing.
type Class struct {
	Name string

	budget   *Budget
	reserved int64
	held     atomic.Int64
	counted  func() int64 // replaces held in a class from Counted
}

// Take adds bytes, or returns false without room for them.
func (c *Class) Take(n int64) bool {
	if c == nil {
		return true
	}
	if c.add(n) >= 0 {
		return true
	}
	c.add(-n)
	return false
}

// Add adds bytes even without room, because they are already in use. A negative number returns bytes.
func (c *Class) Add(n int64) {
	if c != nil {
		c.add(n)
	}
}

// add returns the number of bytes that remain free for the class; negative if it has too many.
func (c *Class) add(n int64) int64 {
	is := c.held.Add(n)
	beyond := max(is-c.reserved, 0)
	common := c.budget.common.Add(max(is-n-c.reserved, 0) - beyond)
	if beyond == 0 {
		return c.reserved - is
	}
	return common
}

// Free returns the number of free bytes for the class; negative if too much was added.
func (c *Class) Free() int64 {
	free := c.reserved - c.held.Load()
	common := c.budget.common.Load()
	if free < 0 {
		return common
	}
	return free + max(common, 0)
}

// certain returns how many items of this size always fit into the reserve.
func (c *Class) certain(size int64) int {
	if c == nil || size == 0 {
		return math.MaxInt
	}
	return int(c.reserved / size)
}

// Held returns the bytes of the class.
func (c *Class) Held() int64 {
	if c == nil {
		return 0
	}
	if c.counted != nil {
		return c.counted()
	}
	return c.held.Load()
}
