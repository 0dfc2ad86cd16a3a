package quota

import "time"

// Ask is a replica's question to the store that divides a limit among replicas.
type Ask struct {
	// limiter.QuotaBucket.Key of the pool. Other replicas may ask for the same Key with another Rate and Burst, if their
	// buckets belong to other rules
	Key string

	Rate  float64 // rate of the whole limit, in tokens per second
	Burst float64 // burst of the whole limit, in tokens
	Saved float64 // saved tokens to start with if no replica holds a share yet; at most Burst

	Demand float64 // requests per second that arrive at this replica

	HeldRate  float64 // part of its rate that this replica cannot return: its clients may still use it
	HeldBurst float64 // part of its burst that it keeps, in tokens
	Returned  float64 // saved tokens that it returns: they are no longer part of HeldBurst

	// ClaimRate is the rate of clients that arrived from a replica that has stopped. The store takes this rate, with its
	// part of the tokens, from the shares that stopped replicas still hold, as far as they suffice.
	ClaimRate float64

	// ClaimAge is the time since the first of these clients arrived. It cannot have come from a replica that has asked
	// since.
	ClaimAge time.Duration

	// The replica numbers its questions about this limit in ascending order. Number is the number of this question, and
	// Answered is the number of the last question whose answer arrived. If the store served claims of a question after
	// Answered, that answer was lost: the store then counts the served claims as held, and repeats the answer. The store
	// does not answer a question that arrives after one with a higher number.
	Number, Answered uint64

	// the last question of this replica. Its share expires when its clients' assignments have expired, or follows the
	// clients to other replicas
	Ends bool

	Held bool // this replica has held a share before: if the store has no record of it, the store has lost its data
}

// In converts the question into other tokens: the argument is their number for one of the present tokens.
func (a Ask) In(tokens float64) Ask {
	for _, n := range [...]*float64{&a.Rate, &a.Burst, &a.Saved, &a.Demand, &a.HeldRate, &a.HeldBurst, &a.Returned,
		&a.ClaimRate} {
		*n *= tokens
	}
	return a
}

// Share is the part of a limit that one replica may hand out until the share expires.
type Share struct {
	Rate  float64 // tokens per second
	Burst float64 // tokens that clients of this replica may hold, including saved ones
	Saved float64 // tokens that the replica may hand out now, in addition to those that it saved itself

	ClaimedRate, ClaimedBurst float64 // part of Rate and Burst that was taken for claims: clients already hold it

	ClaimsOpen bool // more may be taken for the claims from another replica

	FairRate, FairBurst float64 // the share to return to, if it holds more: other replicas need the rest

	Replicas int           // number of replicas that hold shares
	TTL      time.Duration // life of the share, from the time of the request
}

// In converts the share into other tokens: the argument is their number for one of the present tokens.
func (s Share) In(tokens float64) Share {
	for _, n := range [...]*float64{&s.Rate, &s.Burst, &s.Saved, &s.ClaimedRate, &s.ClaimedBurst, &s.FairRate,
		&s.FairBurst} {
		*n *= tokens
	}
	return s
}
