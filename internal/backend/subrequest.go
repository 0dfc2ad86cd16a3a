package backend

import "slices"

// SubRequest holds those takes of a request that go to one place in one call, with their indexes in the whole request.
// Add fills it, and Prepare makes room for the outcomes. After a store has settled the Request, Answer copies the
// outcomes to the whole request.
type SubRequest struct {
	Request
	places []int // indexes of the takes in the whole request
}

// Add adds a take for the one at index place of the whole request. It returns a pointer that is valid until the next
// Add.
func (s *SubRequest) Add(place int, t Take) *Take {
	s.Takes = append(s.Takes, t)
	s.places = append(s.places, place)
	return &s.Takes[len(s.Takes)-1]
}

// At returns the take that was added for index place of the whole request, or nil. It is valid until the next Add.
func (s *SubRequest) At(place int) *Take {
	if i := slices.Index(s.places, place); i >= 0 {
		return &s.Takes[i]
	}
	return nil
}

// Place returns the index of the i-th take in the whole request.
func (s *SubRequest) Place(i int) int { return s.places[i] }

// Prepare makes room for the outcomes of all takes.
func (s *SubRequest) Prepare() {
	s.Outcomes = append(s.Outcomes[:0], make([]Outcome, len(s.Takes))...)
}

// Answer copies all outcomes to the whole request.
func (s *SubRequest) Answer(whole *Request) {
	for i, place := range s.places {
		whole.Outcomes[place] = s.Outcomes[i]
	}
}

// Clear empties s and keeps its memory for another request.
func (s *SubRequest) Clear() {
	clear(s.Takes) // keys, limits and rules can be garbage collected
	s.Request = Request{Takes: s.Takes[:0], Outcomes: s.Outcomes[:0]}
	s.places = s.places[:0]
}
