package memory

// tails keeps the tails of states by number.
type tails struct {
	chunks [][][]uint32
	size   int
	unused []uint32 // numbers of removed tails
}

const tailsInChunk = 256

func (t *tails) at(number uint32) *[]uint32 {
	return &t.chunks[number/tailsInChunk][number%tailsInChunk]
}

// add adds a tail and returns its number.
func (t *tails) add(tail []uint32) (number uint32) {
	if last := len(t.unused) - 1; last >= 0 {
		number, t.unused = t.unused[last], t.unused[:last]
		*t.at(number) = tail
		return number
	}
	number = uint32(t.size)
	last := t.size / tailsInChunk
	if last == len(t.chunks) {
		t.chunks = append(t.chunks, nil)
	}
	c := t.chunks[last]
	if len(c) == cap(c) { // an eighth more, so that few tails waste little
		c = append(make([][]uint32, 0, min(len(c)+max(8, t.size/8), tailsInChunk)), c...)
	}
	t.chunks[last] = append(c, tail)
	t.size++
	return number
}

// remove removes a tail. Its number is used again.
func (t *tails) remove(number uint32) {
	*t.at(number) = nil
	t.unused = append(t.unused, number)
}
