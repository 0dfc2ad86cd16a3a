package backend

// Settle decides the takes of one group: a whole request that is settled together, or one member of a request. states holds
// the counter of each take; takes of the same counter share one State. Settle fills outcomes and leaves in the states what a
// store has to keep.
//
// This is the only place that decides which takes add their hits. The Redis scripts decide the same way. The outcomes of a
// script are found by running Settle again on the states that the script saw.
func Settle(takes []Take, states []*State, outcomes []Outcome, now int64) {
	if len(takes) == 1 {
		outcomes[0] = apply(&takes[0], states[0], now, takes[0].commit())
		return
	}
	for i := range takes {
		outcomes[i] = apply(&takes[i], states[i], now, commitNever)
	}
	refused := Refused(takes, outcomes)
	for i := range takes {
		c := takes[i].commit()
		if refused && takes[i].Hits >= 0 && (outcomes[i].Allowed || c != commitAlways) {
			c = commitNever
		}
		outcomes[i] = apply(&takes[i], states[i], now, c)
	}
}

// Peek judges one take by its counter's state and changes nothing.
func Peek(t *Take, s *State, now int64) Outcome { return apply(t, s, now, commitNever) }

// Refused reports whether these outcomes refuse the group: a member that votes All is refused, or all members that vote Any
// are refused. A member is refused if any of its takes is refused.
func Refused(takes []Take, outcomes []Outcome) bool {
	anyVoted, anyPassed := false, false
	for i := 0; i < len(takes); {
		vote, passed := takes[i].Vote, true
		member := takes[i].Member
		for ; i < len(takes) && takes[i].Member == member; i++ {
			passed = passed && outcomes[i].Allowed
		}
		switch {
		case vote == VoteAll && !passed:
			return true
		case vote == VoteAny:
			anyVoted = true
			anyPassed = anyPassed || passed
		}
	}
	return anyVoted && !anyPassed
}

// Group returns the end of the group of takes that begins at start.
func (r *Request) Group(start int) (end int) {
	if r.Together {
		return len(r.Takes)
	}
	for end = start + 1; end < len(r.Takes) && r.Takes[end].Member == r.Takes[start].Member; end++ {
	}
	return end
}
