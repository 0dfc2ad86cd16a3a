package region

// Question is what a region asks the home about one counter. Until it has an answer, the region repeats the same question.
type Question struct {
	Region      string
	Epoch       uint64
	Incarnation uint64 // of the account
	Number      uint64 // counts the questions of an incarnation
	Nonce       uint64 // random: an account that has lost writes may ask another question with the same number

	Grants []Grant // all that the account knows: what it has used and returned, as totals

	Want int64 // permits for some time ahead; negative: it has more
	Need int64 // permits that requests wait for
}

// Answer is the answer to a question.
type Answer struct {
	Epoch       uint64
	Incarnation uint64
	Number      uint64
	Nonce       uint64
	Result      Result
	Limit       uint64 // at the home, which counts

	// Rules stands for the rules and overrides that the replica of the home has decided by: while it is the same number, so is Limit. 0:
	// unknown.
	Rules uint64

	Permits  int64 // granted; the other fields of the grant follow
	Charged  int64
	Ends     int64
	ValidFor int64 // from when the question was first asked, on any clock

	Remaining  int64 // what the home has left
	RetryAfter int64 // if nothing is granted: until it is worth asking again
}

// Result is what became of a question.
type Result uint8

// The results.
const (
	Granted  Result = iota
	Full            // too little is left for the requests that wait
	Enough          // no request waits, and the region would hold too much
	Inactive        // the home may not act, or may not yet
	Outdated        // the region or the home has an older list of regions than the other
	Stale           // the home has heard later questions of this account, another one with this number, or those of another account: writes were lost
)
