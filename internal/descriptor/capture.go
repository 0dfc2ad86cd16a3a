package descriptor

import (
	"errors"
	"fmt"
	"math/bits"
	"regexp/syntax"
	"slices"
	"unicode/utf8"
)

// capture finds the text of one capture group of an expression, the same that package regexp finds. It reads all of the
// value, because a client could otherwise choose its counter with the part that is not read.
//
// It reads the value twice. The first time it goes from the end to the start with an automaton, and notes at each place
// which instructions can continue to a match of the whole value. The second time it goes from the start to the end. Of
// the instructions that package regexp would try, it takes the first that was noted. So nothing is tried in vain, and
// the time is proportional to the length of the value.
type capture struct {
	alphabet
	insts  []syntax.Inst
	start  uint32
	looks  bool   // some instructions, such as ^ and \b, check the characters before and after a place
	begins uint32 // Arg of the instruction at the start of the group; the group ends at the next one

	// The first state stands for the end of a value.
	next []uint16         // next state, one character further to the front, by state and then by class
	sets []instructionSet // instructions that can still lead to a match, by state
}

// maxCaptureInsts bounds the instructions of an expression with a capture group that counts.
const maxCaptureInsts = 512

// instructionSet is a set of instructions.
type instructionSet [maxCaptureInsts / 64]uint64

func (s *instructionSet) has(pc uint32) bool { return s[pc/64]&(1<<(pc%64)) != 0 }
func (s *instructionSet) put(pc uint32)      { s[pc/64] |= 1 << (pc % 64) }

// Bounds on the automaton of a capture group.
const (
	maxCaptureTable  = 1 << 15 // entries in the table
	maxCaptureStates = 1 << 11
)

var errCaptureTooLarge = errors.New("the expression is too large to find its capture group fast: use fewer and " +
	"smaller repetitions, such as + instead of {1,100}, and characters that end a part, such as [^/]+ instead of .+")

// CheckCapture returns an error if a group cannot be a capture group of the expression. size is the size of the table
// that finds the group; if the table becomes too large, its size when building it ended.
func CheckCapture(text string, number int, fold bool) (size int, err error) {
	c, err := newCapture(text, number, fold)
	if c != nil {
		size = len(c.next)
	}
	return size, err
}

func newCapture(text string, number int, fold bool) (*capture, error) {
	parsed, err := parseRegex(text, fold)
	if err != nil {
		return nil, err
	}
	if n := parsed.MaxCap(); number > n {
		return nil, fmt.Errorf("the expression has %d capture groups, which are its parts in ( )", n)
	}
	compiled, err := syntax.Compile(parsed.Simplify())
	if err != nil {
		return nil, fmt.Errorf("compile expression: %w", err)
	}
	if len(compiled.Inst) > maxCaptureInsts {
		return nil, errCaptureTooLarge
	}
	c := &capture{insts: compiled.Inst, start: uint32(compiled.Start), begins: uint32(2 * number)}
	p := &program{insts: c.insts}
	for i := range c.insts {
		p.looks = p.looks || c.insts[i].Op == syntax.InstEmptyWidth
	}
	c.looks = p.looks
	samples := c.classify(p)
	if samples == nil {
		return nil, errCaptureTooLarge
	}
	return c, c.build(p, samples)
}

// build makes the states, starting with the end of a value.
func (c *capture) build(p *program, samples []rune) error {
	type state struct {
		set   instructionSet
		after rune // the kind of the character after this place; -1 at the end
	}
	kinds := &simulation{program: p}
	readers := make([]instructionSet, len(samples)) // instructions that read a character of each class
	var last instructionSet
	for pc := range c.insts {
		in := &c.insts[pc]
		for class, r := range samples {
			if reads(in.Op) && in.MatchRune(r) {
				readers[class].put(uint32(pc))
			}
		}
		if in.Op == syntax.InstMatch {
			last.put(uint32(pc))
		}
	}
	states := []state{{last, -1}}
	known := map[state]uint16{states[0]: 0}
	for i := 0; i < len(states); i++ {
		var lead instructionSet
		for class, r := range samples {
			if class == 0 || c.looks {
				lead = c.leading(states[i].set, syntax.EmptyOpContext(r, states[i].after))
			}
			s := state{after: kinds.kind(r)}
			for pc := range readers[class].each {
				if lead.has(c.insts[pc].Out) {
					s.set.put(pc)
				}
			}
			n, seen := known[s]
			if !seen {
				n = uint16(len(states))
				known[s] = n
				states = append(states, s)
			}
			c.next = append(c.next, n)
		}
		if len(states) > maxCaptureStates || len(states)*c.classes > maxCaptureTable {
			return errCaptureTooLarge
		}
	}
	for i := range states {
		c.sets = append(c.sets, states[i].set)
	}
	c.next, c.sets = slices.Clip(c.next), slices.Clip(c.sets)
	return nil
}

// each yields the instructions of a set.
func (s *instructionSet) each(yield func(pc uint32) bool) {
	for i, word := range s {
		for ; word != 0; word &= word - 1 {
			if !yield(uint32(i*64 + bits.TrailingZeros64(word))) {
				return
			}
		}
	}
}

// leading returns the instructions that lead to one of a set without reading a character, where these conditions hold.
func (c *capture) leading(set instructionSet, holds syntax.EmptyOp) instructionSet {
	for changed := true; changed; {
		changed = false
		for pc := range c.insts {
			in, leads := &c.insts[pc], false
			switch in.Op {
			case syntax.InstAlt, syntax.InstAltMatch:
				leads = set.has(in.Out) || set.has(in.Arg)
			case syntax.InstCapture, syntax.InstNop:
				leads = set.has(in.Out)
			case syntax.InstEmptyWidth:
				leads = syntax.EmptyOp(in.Arg)&^holds == 0 && set.has(in.Out)
			}
			if leads && !set.has(uint32(pc)) {
				set.put(uint32(pc))
				changed = true
			}
		}
	}
	return set
}

// of returns the text of the group in a value. It is empty if the group takes no part in the match, or if the value
// does not match.
func (c *capture) of(value string) string {
	var few [256]uint16
	at := few[:] // state at each place where a character starts, and at the end
	if len(value) >= len(few) {
		at = make([]uint16, len(value)+1)
	}
	s := uint16(0)
	at[len(value)] = s
	for i := len(value); i > 0; at[i] = s {
		class, size := c.ascii[value[i-1]&(utf8.RuneSelf-1)], 1
		if value[i-1] >= utf8.RuneSelf {
			var r rune
			r, size = utf8.DecodeLastRuneInString(value[:i])
			class = c.classOf(r)
		}
		s = c.next[int(s)*c.classes+int(class)]
		i -= size
	}
	w := captureWalk{capture: c, before: -1, begin: -1, end: -1}
	pc := c.start
	for {
		w.set, w.seen = &c.sets[at[w.at]], instructionSet{}
		r, size := rune(-1), 0
		if w.at < len(value) {
			r, size = utf8.DecodeRuneInString(value[w.at:])
		}
		if c.looks {
			w.holds = syntax.EmptyOpContext(w.before, r)
		}
		if !w.follow(pc) {
			return ""
		}
		in := &c.insts[w.to]
		if in.Op == syntax.InstMatch {
			break
		}
		pc, w.before, w.at = in.Out, r, w.at+size
	}
	if w.begin < 0 || w.end < 0 {
		return ""
	}
	return value[w.begin:w.end]
}

// captureWalk is the second reading of a value.
type captureWalk struct {
	*capture
	at     int  // place in the value
	before rune // kind of the character before it; -1 at the start
	holds  syntax.EmptyOp
	set    *instructionSet // instructions that can continue from here to a match
	seen   instructionSet  // instructions that were tried here

	to         uint32 // the instruction that was found
	begin, end int    // bounds of the group
}

// follow finds the first instruction after pc that reads the next character, or ends the match, and can continue to a
// match. On the way it notes the start and the end of the group.
func (w *captureWalk) follow(pc uint32) bool {
	for {
		if w.seen.has(pc) {
			return false
		}
		w.seen.put(pc)
		switch in := &w.insts[pc]; in.Op {
		case syntax.InstAlt, syntax.InstAltMatch:
			if w.follow(in.Out) {
				return true
			}
			pc = in.Arg
		case syntax.InstCapture:
			if in.Arg&^1 != w.begins {
				pc = in.Out
				continue
			}
			if !w.follow(in.Out) {
				return false
			}
			if in.Arg == w.begins {
				w.begin = w.at
			} else {
				w.end = w.at
			}
			return true
		case syntax.InstNop:
			pc = in.Out
		case syntax.InstEmptyWidth:
			if syntax.EmptyOp(in.Arg)&^w.holds != 0 {
				return false
			}
			pc = in.Out
		default:
			w.to = pc
			return w.set.has(pc)
		}
	}
}
