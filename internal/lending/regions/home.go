package regions

import "bytes"

// HomeOf returns the region that is the home of a counter for which the rule names none, or "" if the list is empty.
// All replicas of all regions must have the same list, in any order, and the same prefix of keys.
//
// The part of the key after the last | names a limit of the rule. It is ignored, so that all limits of a customer have
// the same home.
//
// Each region draws a number from its name and the key, and the largest wins. When a region is added, only the counters
// that it wins move.
func HomeOf(key []byte, regions []string) (home string) {
	if end := bytes.LastIndexByte(key, '|'); end >= 0 {
		key = key[:end]
	}
	most := uint64(0)
	for _, name := range regions {
		h := uint64(14695981039346656037) // FNV-1a, without the allocation of a hash.Hash
		for i := range len(name) {
			h = (h ^ uint64(name[i])) * fnvPrime
		}
		h *= fnvPrime // a byte of 0
		for _, b := range key {
			h = (h ^ uint64(b)) * fnvPrime
		}
		n := mixed(h)
		if home == "" || n > most || n == most && name < home {
			home, most = name, n
		}
	}
	return home
}

const fnvPrime = 1099511628211

// mixed spreads every bit of a sum over all bits of the result, as the end of MurmurHash3 does: FNV alone would draw
// similar numbers for keys that differ only at their end.
func mixed(h uint64) uint64 {
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	h ^= h >> 33
	h *= 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}
