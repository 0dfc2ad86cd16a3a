package backend

import "slices"

// SubRequest is some takes of a request that go to one place in one call, and their places in the whole request. It is
// filled by Add, then Prepare makes room for the outcomes, then somebody settles the Request, and Answer hands the outcomes
// over.
type SubRequest struct {
	Request
	places []int // of each take in the whole request
}

// Add adds a take, for the one at a place of the whole request, and returns it until the next Add.
func (s *SubRequest) Add(place int, t Take) *Take {
	s.Takes = append(s.Takes, t)
	s.places = append(s.places, place)
	return &s.Takes[len(s.Takes)-1]
}

// Has says whether a take was added for a place of the whole request.
func (s *SubRequest) Has(place int) bool { return slices.Contains(s.places, place) }

// Place is the place of the i-th take in the whole request.
func (s *SubRequest) Place(i int) int { return s.places[i] }

// Prepare makes room for the outcomes of all takes.
func (s *SubRequest) Prepare() {
	s.Outcomes = append(s.Outcomes[:0], make([]Outcome, len(s.Takes))...)
}

// Answer hands all outcomes over to the whole request.
func (s *SubRequest) Answer(whole *Request) {
	for i, place := range s.places {
		whole.Outcomes[place] = s.Outcomes[i]
	}
}

// Clear empties s and keeps its memory for another request.
func (s *SubRequest) Clear() {
	clear(s.Takes) // keys, limits and rules can be collected
	s.Request = Request{Takes: s.Takes[:0], Outcomes: s.Outcomes[:0]}
	s.places = s.places[:0]
}
