package memory

// arena allocates pieces of large chunks of bytes. So a piece costs no allocation, and its place is a number instead of
// a pointer. An unused piece is waste until the others are copied to a new arena.
type arena struct {
	chunks [][]byte
	open   int // index of the chunk for small pieces
	size   int // bytes of all pieces
	waste  int // bytes of those that are no longer used
}

// Bounds of a chunk's size. A new chunk has an eighth of the bytes in the arena, within these bounds.
const (
	smallestChunk = 1 << 9
	largestChunk  = 1 << chunkBits
	chunkBits     = 15 // a place is the number of a chunk, and these bits for the place in it
)

// add returns a new piece, and its place.
func (a *arena) add(size int) (piece []byte, place uint64) {
	n := a.open
	switch {
	case n < len(a.chunks) && cap(a.chunks[n])-len(a.chunks[n]) >= size:
	case size > largestChunk/4: // separate chunk: the open one keeps its free bytes
		n = a.grow(size)
	default:
		n = a.grow(max(size, min(max(smallestChunk, a.size/8), largestChunk)))
		a.open = n
	}
	begin := len(a.chunks[n])
	a.chunks[n] = a.chunks[n][:begin+size]
	a.size += size
	return a.chunks[n][begin:], uint64(n)<<chunkBits | uint64(begin)
}

func (a *arena) grow(size int) (chunk int) {
	a.chunks = append(a.chunks, make([]byte, 0, size))
	return len(a.chunks) - 1
}

// at returns the piece at a place, and all bytes after it in its chunk.
func (a *arena) at(place uint64) []byte {
	return a.chunks[place>>chunkBits][place%largestChunk:]
}

// wasteful reports whether more than a quarter is waste, and the waste is large enough to copy the rest.
func (a *arena) wasteful() bool { return a.waste > a.size/4 && a.waste >= 4*smallestChunk }
