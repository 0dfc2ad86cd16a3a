package descriptor

import (
	"encoding/binary"
	"math/bits"
	"regexp/syntax"
	"slices"
	"unicode/utf8"
)

// automaton matches many regular expressions in one pass. It reads a text from left to right, with one table lookup per
// character for any number of expressions. It finds the same matches as package regexp. It is built when rules are
// compiled and never changes, so matching takes no lock.
//
// A state is the set of places in the expressions that the text read so far can reach. Text that is not ASCII is read
// rune by rune, and bytes that are not UTF-8 are read as U+FFFD, as package regexp does.
type automaton struct {
	alphabet

	start  uint16
	stable uint16   // states below this number lead only to themselves: further text does not change the result
	next   []uint16 // next state, by state and then by class
	ends   []int32  // first expression that matches if the text ends here, by state
	goesOn []uint32 // expressions that can match a longer text, by state: a bit for each of members

	members []int32 // the expressions, in file order
}

// none is greater than the number of every expression. It stands for no match.
const none = int32(1<<31 - 1)

// Bounds on the size of an automaton. An expression that needs more, such as .*a.{20}, is left to package regexp.
const (
	maxTable    = 1 << 17 // entries in the table
	maxStates   = 1 << 12
	maxClasses  = 1 << 8
	maxTogether = 32 // expressions

	// How much work may go into the automata of one domain, in places that are looked at. An expression for which nothing
	// is left is left to package regexp too.
	leastWork          = 1 << 16
	workForInstruction = 1 << 9
)

// find returns the first expression that matches a text. Of a longer text it reads only the first most bytes: an
// expression then matches if it matches some longer text that starts with these bytes, and if it comes after the
// expression past.
func (a *automaton) find(text string, most int, past int32) int32 {
	longer := len(text) > most
	if longer {
		text = beginning(text, most)
	}
	s := a.start
	for i := 0; i < len(text) && s >= a.stable; {
		var class uint8
		if b := text[i]; b < utf8.RuneSelf {
			class = a.ascii[b]
			i++
		} else {
			r, size := utf8.DecodeRuneInString(text[i:])
			class = a.classOf(r)
			i += size
		}
		s = a.next[int(s)*a.classes+int(class)]
	}
	if !longer {
		return a.ends[s]
	}
	for on := a.goesOn[s]; on != 0; on &= on - 1 {
		if x := a.members[bits.TrailingZeros32(on)]; x > past {
			return x
		}
	}
	return none
}

// beginning returns the start of a text: at most size bytes, without cutting a rune.
func beginning(text string, size int) string {
	for i := 0; i < utf8.UTFMax-1 && size > 0 && !utf8.RuneStart(text[size]); i++ {
		size--
	}
	return text[:size]
}

// program is the instructions of several expressions, one after the other.
type program struct {
	insts  []syntax.Inst // the Arg of InstMatch is the expression's number
	starts []uint32
	looks  bool // some instructions, such as ^ and \b, check the characters before and after a place
}

func (p *program) addExpression(expression int32, regex *syntax.Regexp) error {
	compiled, err := syntax.Compile(regex.Simplify())
	if err != nil {
		return err
	}
	base := uint32(len(p.insts))
	p.starts = append(p.starts, base+uint32(compiled.Start))
	for _, in := range compiled.Inst {
		in.Out += base
		switch in.Op {
		case syntax.InstAlt, syntax.InstAltMatch:
			in.Arg += base
		case syntax.InstMatch:
			in.Arg = uint32(expression)
		case syntax.InstEmptyWidth:
			p.looks = true
		}
		p.insts = append(p.insts, in)
	}
	return nil
}

func reads(op syntax.InstOp) bool {
	switch op {
	case syntax.InstRune, syntax.InstRune1, syntax.InstRuneAny, syntax.InstRuneAnyNotNL:
		return true
	}
	return false
}

// places is a set of places in a program, in the order in which they were added.
type places struct {
	list []uint32
	at   []uint32 // index in list of each place, if it is in the set
}

func (s *places) has(pc uint32) bool {
	return s.at[pc] < uint32(len(s.list)) && s.list[s.at[pc]] == pc
}

func (s *places) put(pc uint32) bool {
	if s.has(pc) {
		return false
	}
	s.at[pc] = uint32(len(s.list))
	s.list = append(s.list, pc)
	return true
}

// simulation runs a program over a text. It keeps all places that the program can be at.
type simulation struct {
	*program
	now, then places
	before    rune // kind of the last rune; -1 at the start
}

func newSimulation(p *program) *simulation {
	s := &simulation{program: p, before: -1}
	for _, set := range []*places{&s.now, &s.then} {
		set.at = make([]uint32, len(p.insts))
	}
	for _, start := range p.starts {
		s.reach(&s.now, start)
	}
	return s
}

// reach adds a place, and the places that can be reached from it without reading a rune.
func (s *simulation) reach(set *places, pc uint32) {
	if !set.put(pc) {
		return
	}
	switch in := &s.insts[pc]; in.Op {
	case syntax.InstAlt, syntax.InstAltMatch:
		s.reach(set, in.Out)
		s.reach(set, in.Arg)
	case syntax.InstCapture, syntax.InstNop:
		s.reach(set, in.Out)
	}
}

// look follows the conditions that hold between the last rune and r. r is -1 at the end of the text.
func (s *simulation) look(r rune) {
	if !s.looks {
		return
	}
	holds := syntax.EmptyOpContext(s.before, r)
	for i := 0; i < len(s.now.list); i++ { // the list grows in the loop
		in := &s.insts[s.now.list[i]]
		if in.Op == syntax.InstEmptyWidth && syntax.EmptyOp(in.Arg)&^holds == 0 {
			s.reach(&s.now, in.Out)
		}
	}
}

func (s *simulation) step(r rune) {
	s.look(r)
	s.then.list = s.then.list[:0]
	for _, pc := range s.now.list {
		if in := &s.insts[pc]; reads(in.Op) && in.MatchRune(r) {
			s.reach(&s.then, in.Out)
		}
	}
	s.now, s.then = s.then, s.now
	s.before = s.kind(r)
}

// kind returns one rune that stands for all runes that look treats the same way.
func (s *simulation) kind(r rune) rune {
	switch {
	case !s.looks:
		return -1
	case r == '\n':
		return '\n'
	case syntax.IsWordChar(r):
		return 'a'
	default:
		return ' '
	}
}

// ended returns the first expression that matches if the text ends here.
func (s *simulation) ended() int32 {
	s.look(-1)
	first := none
	for _, pc := range s.now.list {
		if in := &s.insts[pc]; in.Op == syntax.InstMatch {
			first = min(first, int32(in.Arg))
		}
	}
	return first
}

// allEnded returns a bit for each of the members that matches if the text ends here. It follows ended.
func (s *simulation) allEnded(members []int32) (all uint32) {
	for _, pc := range s.now.list {
		if in := &s.insts[pc]; in.Op == syntax.InstMatch {
			i, _ := slices.BinarySearch(members, int32(in.Arg))
			all |= 1 << i
		}
	}
	return all
}

// goesOn reports whether a longer text may match.
func (s *simulation) goesOn() bool {
	return slices.ContainsFunc(s.now.list, func(pc uint32) bool {
		op := s.insts[pc].Op
		return reads(op) || op == syntax.InstEmptyWidth
	})
}

// begins reports whether the program can match a longer text that starts with this one.
func (p *program) begins(text string) bool {
	s := newSimulation(p)
	for _, r := range text {
		if s.step(r); len(s.now.list) == 0 {
			return false
		}
	}
	return s.goesOn()
}

// keep removes the places that do not matter for the rest of the text, sorts the others, and returns the state's
// identity.
func (s *simulation) keep(buf []byte) []byte {
	kept := s.now.list[:0]
	for _, pc := range s.now.list {
		if op := s.insts[pc].Op; reads(op) || op == syntax.InstMatch || op == syntax.InstEmptyWidth {
			kept = append(kept, pc)
		}
	}
	slices.Sort(kept)
	s.set(kept)
	buf = append(buf[:0], byte(s.before))
	for _, pc := range kept {
		buf = binary.LittleEndian.AppendUint32(buf, pc)
	}
	return buf
}

func (s *simulation) set(list []uint32) {
	s.now.list = append(s.now.list[:0], list...)
	for i, pc := range s.now.list {
		s.now.at[pc] = uint32(i)
	}
}

// newAutomaton builds the automaton of a program. It returns nil if the automaton would be too large or have more than
// most states, or if it needs more work than left. It subtracts its work from left.
func newAutomaton(p *program, most int, left *int) *automaton {
	a := &automaton{}
	for i := range p.insts {
		if p.insts[i].Op == syntax.InstMatch {
			a.members = append(a.members, int32(p.insts[i].Arg))
		}
	}
	slices.Sort(a.members)
	a.members = slices.Compact(a.members)
	samples := a.classify(p)
	if samples == nil {
		return nil
	}
	type state struct {
		list   []uint32
		before rune
	}
	s := newSimulation(p)
	var states []state
	var all []uint32 // all expressions that match if the text ends here, by state, as in goesOn
	known := make(map[string]uint16)
	var id []byte
	note := func() uint16 {
		id = s.keep(id)
		n, seen := known[string(id)]
		if !seen {
			n = uint16(len(states))
			known[string(id)] = n
			states = append(states, state{slices.Clone(s.now.list), s.before})
		}
		return n
	}
	a.start = note()
	for i := 0; i < len(states); i++ {
		if len(states) > min(most, maxStates) || len(states)*a.classes > maxTable {
			return nil
		}
		if *left -= a.classes * (1 + len(states[i].list)); *left < 0 {
			*left = 0
			return nil
		}
		for _, r := range samples {
			s.set(states[i].list)
			s.before = states[i].before
			s.step(r)
			a.next = append(a.next, note())
		}
		s.set(states[i].list)
		s.before = states[i].before
		a.ends = append(a.ends, s.ended())
		all = append(all, s.allEnded(a.members))
	}
	a.lookAhead(all)
	a.order()
	return a
}

// lookAhead finds, for each state, the expressions that a longer text can still match. ended are those that match if
// the text ends there.
func (a *automaton) lookAhead(ended []uint32) {
	a.goesOn = make([]uint32, len(a.ends))
	for changed := true; changed; {
		changed = false
		for s := len(a.ends) - 1; s >= 0; s-- {
			on := a.goesOn[s]
			for _, t := range a.next[s*a.classes:][:a.classes] {
				on |= ended[t] | a.goesOn[t]
			}
			if on != a.goesOn[s] {
				a.goesOn[s], changed = on, true
			}
		}
	}
}

// order puts the stable states first.
func (a *automaton) order() {
	n := len(a.ends)
	stable := func(s int) bool {
		for _, t := range a.next[s*a.classes:][:a.classes] {
			if int(t) != s {
				return false
			}
		}
		return true
	}
	var order []int // the old number, by the new one
	for _, want := range []bool{true, false} {
		for s := range n {
			if stable(s) == want {
				order = append(order, s)
			}
		}
		if want {
			a.stable = uint16(len(order))
		}
	}
	renamed := make([]uint16, n)
	for s, old := range order {
		renamed[old] = uint16(s)
	}
	next, ends, goesOn := make([]uint16, 0, len(a.next)), make([]int32, 0, n), make([]uint32, 0, n)
	for _, old := range order {
		for _, t := range a.next[old*a.classes:][:a.classes] {
			next = append(next, renamed[t])
		}
		ends, goesOn = append(ends, a.ends[old]), append(goesOn, a.goesOn[old])
	}
	a.next, a.ends, a.goesOn, a.start = next, ends, goesOn, renamed[a.start]
}
