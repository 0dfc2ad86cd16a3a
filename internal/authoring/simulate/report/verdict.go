package report

import (
	"github.com/ratelimitd/ratelimitd/internal/authoring/simulate"
)

// phrase is a part of a sentence.
type phrase struct {
	text string
	kind phraseKind
}

type phraseKind uint8

const (
	plain phraseKind = iota
	strong
	quoted // comes from a log or a rule file
)

// verdict states in a few words, and then in sentences, the effect of the rules, or whom a change of rules affects and
// how.
type verdict struct {
	title     string
	kind      string // "bad", "good" or "warn"
	sentences [][]phrase
}

func newVerdict(r *simulate.Report) verdict {
	var v verdict
	switch {
	case r.New.NoRule+r.New.UnknownDomain == r.Requests:
		v = verdict{title: "No request matches a rule", kind: "warn", sentences: [][]phrase{{
			{"The rules match none of the " + counted(r.Requests, "request") +
				", so this report says nothing about them. Compare the domain and the keys in the mapping with the rules.", plain},
		}}}
	case r.New.Untried() == r.Requests:
		v = verdict{title: "No limit is active", kind: "warn", sentences: [][]phrase{{
			{"The rules match " + share(r, r.New.Inactive) +
				", and none of their limits is active at the time of such a request, so this report says nothing about them. " +
				"Compare the times of the log with `active` in the rules.", plain},
		}}}
	case r.Old == nil:
		v = ofRules(r)
	default:
		v = ofChange(r)
	}
	if n := r.New.Failed; n > 0 {
		v.sentences = append(v.sentences, []phrase{{"For " + counted(n, "request") + " no decision could be made.", plain}})
	}
	if r.Overrides != "" {
		words := []phrase{{"The overrides of ", plain}, {r.Overrides, quoted}, {" are active: they decide ", plain},
			{share(r, r.New.Overridden), strong}}
		if r.Old != nil && r.Old.Overridden != r.New.Overridden {
			words = append(words, phrase{", and " + number(r.Old.Overridden) + " with the old rules", plain})
		}
		v.sentences = append(v.sentences, append(words, phrase{".", plain}))
	}
	if n := r.New.NotEnforced; n > 0 {
		v.sentences = append(v.sentences, []phrase{{counted(n, "request") +
			" went over a limit and passed, because the limit is not enforced.", plain}})
	}
	return v
}

// share writes a number of requests as a part of all.
func share(r *simulate.Report, n int64) string {
	return number(n) + " of " + counted(r.Requests, "request") + " (" + percent(n, r.Requests) + ")"
}

// ofRules is the verdict on one directory of rules.
func ofRules(r *simulate.Report) verdict {
	if r.New.Denied == 0 {
		return verdict{title: "Nobody would be denied", kind: "good", sentences: [][]phrase{{
			{"The rules let all " + counted(r.Requests, "request") + " pass.", plain},
		}}}
	}
	denied := int64(0)
	for i := range r.Customers.Rows {
		if r.Customers.Rows[i].Denied > 0 {
			denied++
		}
	}
	sentence := []phrase{{"The rules deny ", plain}, {share(r, r.New.Denied), strong},
		{" of " + atLeast(r, denied) + ".", plain}}
	return verdict{
		title: counted(denied, "customer") + " would be denied", kind: "bad",
		sentences: [][]phrase{sentence, foremost(r, func(c *simulate.Customer) (int64, []simulate.DeniedBy) {
			return c.Denied, c.DeniedBy
		})},
	}
}

// ofChange is the verdict on a change of rules.
func ofChange(r *simulate.Report) verdict {
	newly, passed := r.NewlyDenied, r.NewlyPassed
	if newly.Requests == 0 && passed.Requests == 0 {
		return verdict{title: "Nobody would notice", kind: "good", sentences: [][]phrase{{
			{"All " + counted(r.Requests, "request") + " get the same verdict as before.", plain},
		}}}
	}
	var v verdict
	if newly.Requests == 0 {
		v = verdict{title: counted(passed.Customers, "customer") + " would be denied less often, nobody more often",
			kind: "good"}
	} else {
		v = verdict{title: counted(newly.Customers, "customer") + " would be newly denied", kind: "bad"}
		v.sentences = append(v.sentences,
			[]phrase{{"The change denies ", plain}, {share(r, newly.Requests), strong},
				{" that pass today. They come from " + atLeast(r, newly.Customers) + ".", plain}},
			foremost(r, func(c *simulate.Customer) (int64, []simulate.DeniedBy) { return c.NewlyDenied, c.NewlyDeniedBy }))
	}
	if passed.Requests > 0 {
		v.sentences = append(v.sentences, []phrase{
			{"It lets ", plain}, {share(r, passed.Requests), strong},
			{" pass that are denied today. They come from " + atLeast(r, passed.Customers) + ".", plain},
		})
	} else {
		v.sentences = append(v.sentences, []phrase{{"No request that is denied today would pass.", plain}})
	}
	return v
}

// foremost is the sentence about the customer with most denials.
func foremost(r *simulate.Report, of func(*simulate.Customer) (int64, []simulate.DeniedBy)) []phrase {
	var most *simulate.Customer
	count, by := int64(0), []simulate.DeniedBy(nil)
	for i := range r.Customers.Rows {
		if n, limits := of(&r.Customers.Rows[i]); n > count {
			most, count, by = &r.Customers.Rows[i], n, limits
		}
	}
	if most == nil {
		return nil
	}
	words := []phrase{{"Most affected is ", plain}, {most.Customer, quoted},
		{" with " + number(count) + " of its " + counted(most.Requests, "request"), plain}}
	if len(by) > 0 {
		words = append(words, phrase{", denied most by ", plain}, phrase{by[0].Rule, quoted})
		if limit := rate(by[0].Name, by[0].Limit, by[0].Burst); limit != "" {
			words = append(words, phrase{", ", plain}, phrase{limit, quoted})
		}
	}
	return append(words, phrase{".", plain})
}

// atLeast writes a number of customers, which is a lower bound if there were too many to count individually.
func atLeast(r *simulate.Report, n int64) string {
	if r.Customers.Exact {
		return counted(n, "customer")
	}
	return "at least " + counted(n, "customer")
}
