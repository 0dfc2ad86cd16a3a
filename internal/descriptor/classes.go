package descriptor

import (
	"fmt"
	"hash/fnv"
	"math"
	"slices"
	"strconv"
	"strings"
)

// MaxClasses is the number of classes of a limit that may have a guarantee. A script gets all of them as one number.
const MaxClasses = 5

// otherClass stands in rule files for the values that have no class.
const otherClass = "*"

// Classes share a limit. Each class is guaranteed a part of it, and lends the unused rest of its part. The value of an
// entry is the class of a request. All other values are one class, which has no guarantee unless it is in Of.
type Classes struct {
	Key      string  // key of the entry
	Level    int     // level of the entry in the rule's path
	Fold     bool    // the case of letters does not matter; the names have lower case
	Of       []Class // classes with a guarantee; sorted by name
	Position Position
}

// Class is one class with a guarantee.
type Class struct {
	Name    string // "*": all values that no other class has
	Percent uint8  // percentage of the limit, from 1
}

// Sharing is which classes share the limits of a rule.
type Sharing struct {
	Of []*Classes // classes of each limit; nil if the limit is not shared
}

// ClassesOf returns the classes that share a limit of the rule, or nil if it is not shared.
func (r *Rule) ClassesOf(limit int) *Classes {
	if r.ByEntry == nil || r.ByEntry.Classes == nil {
		return nil
	}
	return r.ByEntry.Classes.Of[limit]
}

// ClassParts are the classes of a limit, as stores need them.
type ClassParts struct {
	Percent [MaxClasses]uint8 // guaranteed percentage of each class; 0 for a class that does not exist
	Class   uint8             // class of the customer, counted from 1; 0 without a class

	// Names identifies the names of the classes. In a counter that other classes have used, nothing of these guarantees is
	// gone yet.
	Names uint8
}

// Others returns the percentage of the limit that is guaranteed to the other classes.
func (p *ClassParts) Others() (percent uint64) {
	for i, n := range p.Percent {
		if i+1 != int(p.Class) {
			percent += uint64(n)
		}
	}
	return percent
}

// Parts returns the guaranteed parts of the classes, for a customer without a class.
func (c *Classes) Parts() ClassParts {
	h := fnv.New32a()
	var p ClassParts
	for i := range c.Of {
		p.Percent[i] = c.Of[i].Percent
		h.Write([]byte(c.Of[i].Name))
		h.Write([]byte{0})
	}
	sum := h.Sum32()
	p.Names = uint8(sum ^ sum>>8 ^ sum>>16 ^ sum>>24)
	return p
}

// Class returns the class of a request with these entries, counted from 1. It is 0 if the value has no class.
func (c *Classes) Class(entries []Entry) (class uint8) {
	value := entries[c.Level].Value
	if c.Fold {
		value = Fold(value)
	}
	for i := range c.Of {
		switch c.Of[i].Name {
		case value:
			if value != otherClass {
				return uint8(i + 1)
			}
			class = uint8(i + 1)
		case otherClass:
			class = uint8(i + 1)
		}
	}
	return class
}

// Name returns the name of a class, counted from 1. Customers without a class have the name "*" too.
func (c *Classes) Name(class uint8) string {
	if class == 0 {
		return otherClass
	}
	return c.Of[class-1].Name
}

// String returns the classes as a rule file writes them, or "" for nil.
func (c *Classes) String() string {
	if c == nil {
		return ""
	}
	parts := make([]string, len(c.Of))
	for i, of := range c.Of {
		parts[i] = fmt.Sprintf("%q: %d", of.Name, of.Percent)
	}
	return fmt.Sprintf("{by: %q, guaranteed_percent: {%s}}", c.Key, strings.Join(parts, ", "))
}

// Words describes the classes for people.
func (c *Classes) Words() string {
	parts := make([]string, len(c.Of))
	for i, of := range c.Of {
		name := strconv.Quote(of.Name)
		if of.Name == otherClass {
			name = "all others"
		}
		parts[i] = fmt.Sprintf("%s %d%%", name, of.Percent)
	}
	return fmt.Sprintf("guaranteed by %q: %s", c.Key, strings.Join(parts, ", "))
}

// Sort sorts the classes by name, so that their order in a rule file does not matter.
func (c *Classes) Sort() {
	slices.SortFunc(c.Of, func(a, b Class) int { return strings.Compare(a.Name, b.Name) })
}

// Share makes a limit one that classes share, and compiles it.
func (l *Limit) Share(c *Classes) error {
	l.Algorithm, l.Classes = SharedWindow, c.Parts()
	return l.Compile()
}

func (l *Limit) compileSharedWindow(int64) error {
	if l.Requests > math.MaxUint32 {
		return limitErrorf("requests_per_unit",
			"%d that classes share cannot be counted exactly, %d is the most; leave out `classes` for more",
			l.Requests, uint32(math.MaxUint32))
	}
	return nil
}
