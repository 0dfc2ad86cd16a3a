package backend

import "slices"

// Settle decides the takes of one group: a whole request that is settled together, or one member of a request. states
// holds the counter of each take; takes of the same counter share one State. Settle fills outcomes and leaves the
// states as a store has to keep them.
//
// This is the only place that decides which takes add their hits. The Redis scripts decide the same way. The outcomes
// of a script are found by running Settle again on the states that the script saw.
//
// Takes of the same counter are judged together in a group that reserves: each one sees the hits of the earlier ones.
// So either all of the group is reserved or nothing, even if its reservations of one counter have different IDs. In
// other groups each take is judged alone.
//
// A take that is guarded by an active penalty adds nothing, regardless of its vote. So a limit that is not enforced
// counts as if it were enforced. A penalty starts if the take is denied by its own limit, even if another limit denies
// the group.
func Settle(takes []Take, states []*State, outcomes []Outcome, at Times) {
	if len(takes) == 1 {
		outcomes[0] = takes[0].settle(states[0], at.Of(takes[0].Limit), takes[0].commit())
		return
	}
	for i := range takes {
		if takes[i].Corrects() { // first, because nothing can deny it, and its charge counts for the others
			outcomes[i] = takes[i].settle(states[i], at.Of(takes[i].Limit), commitAllowed)
		}
	}
	together := slices.ContainsFunc(takes, func(t Take) bool { return t.reserves() })
	judge := func(i int, c commit) {
		t, s := &takes[i], states[i]
		outcomes[i] = t.settle(s, at.Of(t.Limit), c)
		if together && c == commitNever && t.commit().adds(outcomes[i].Allowed) {
			s.ahead = min(s.ahead+t.adds(), MaxCount)
		}
	}
	for i := range takes {
		if !takes[i].Corrects() {
			judge(i, commitNever)
		}
	}
	shareGrant(takes)
	denied := Denied(takes, outcomes)
	clearAhead(states, together)
	penalised := false // the take before guards this one, and its penalty is active
	for i := range takes {
		if takes[i].Corrects() {
			continue
		}
		if takes[i].Guards && i+1 < len(takes) {
			penalised = !outcomes[i].Allowed
			if begins := offends(&takes[i+1], &outcomes[i+1]); begins {
				outcomes[i] = takes[i].begin(states[i], at.Of(takes[i].Limit))
				continue
			}
			judge(i, commitAllowed)
			continue
		}
		c := takes[i].commit()
		if !takes[i].always() && (penalised || denied && (outcomes[i].Allowed || c != commitAlways)) {
			c = commitNever
		}
		penalised = false
		judge(i, c)
	}
	clearAhead(states, together)
	if denied {
		dropGrants(takes)
	}
}

func clearAhead(states []*State, together bool) {
	for i := range states {
		if !together {
			return
		}
		states[i].ahead = 0
	}
}

// settle attempts a take on a state at now.
func (t *Take) settle(s *State, now int64, c commit) Outcome {
	if t.Reservation != nil {
		return t.Reservation.settle(t, s, now, c)
	}
	if c == commitNever && s.ahead > 0 && t.Hits > 0 {
		return algorithms[t.Limit.Algorithm].apply(t.Limit, s, now, min(t.Hits+s.ahead, MaxCount), c)
	}
	return apply(t, s, now, c)
}

// adds returns the number of hits that an allowed take adds when the later takes of its group are judged.
func (t *Take) adds() int64 {
	if t.reserves() {
		return t.Reservation.Granted
	}
	return max(0, t.Hits)
}

// always reports whether a take changes its counter even if the group is denied: it gives hits back, or corrects the
// number of hits that have passed already.
func (t *Take) always() bool { return t.Corrects() || t.Reservation == nil && t.Hits < 0 }

// reserves reports whether a take makes a reservation.
func (t *Take) reserves() bool { return t.Reservation != nil && t.Reservation.Op == OpReserve }

// Corrects reports whether a take commits or extends a reservation. It does so even if its group is denied.
func (t *Take) Corrects() bool { return t.Reservation != nil && t.Reservation.Op != OpReserve }

// Peek judges one take by its counter's state and changes nothing.
func Peek(t *Take, s *State, now int64) Outcome { return apply(t, s, now, commitPeek) }

// Denied reports whether these outcomes deny the group: a member that votes All is denied, or all members that vote Any
// are denied. A member is denied if any of its takes is denied, except takes without a vote.
func Denied(takes []Take, outcomes []Outcome) bool {
	anyVoted, anyPassed := false, false
	for i := 0; i < len(takes); {
		member, votesAny, passed := takes[i].Member, false, true
		for ; i < len(takes) && takes[i].Member == member; i++ {
			switch t := &takes[i]; {
			case t.Vote == VoteAny:
				votesAny = true
				passed = passed && outcomes[i].Allowed
			case t.Vote == VoteAll && !outcomes[i].Allowed:
				return true
			}
		}
		anyVoted = anyVoted || votesAny
		anyPassed = anyPassed || votesAny && passed
	}
	return anyVoted && !anyPassed
}

// Group returns the end of the group of takes that starts at start.
func (r *Request) Group(start int) (end int) {
	if r.Together {
		return len(r.Takes)
	}
	for end = start + 1; end < len(r.Takes) && r.Takes[end].Member == r.Takes[start].Member; end++ {
	}
	return end
}
