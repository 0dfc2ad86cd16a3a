package quota

import "time"

// Ask is what one replica asks of the store that divides a limit among replicas.
type Ask struct {
	// of the pool: limiter.QuotaBucket.Key. Replicas with buckets of other rules under it may ask with another Rate and
	// Burst
	Key string

	Rate  float64 // of the whole limit, in tokens per second
	Burst float64 // of the whole limit, in tokens
	Saved float64 // tokens that are saved at the beginning, if no replica holds a share yet: at most Burst

	Demand float64 // requests per second that arrive at this replica

	HeldRate  float64 // the part of its rate that this replica cannot give back: its clients may still use it
	HeldBurst float64 // the part of its burst that it keeps, in tokens
	Returned  float64 // tokens that it has saved and returns: they are no longer part of HeldBurst

	// ClaimRate is the rate of clients that came from a replica that has ended. The store takes this rate, with its part
	// of the tokens, from the shares that ended replicas still hold, as far as there is enough.
	ClaimRate float64

	// ClaimAge is how long ago the first of these clients came. It cannot have come from a replica that has asked since.
	ClaimAge time.Duration

	// The replica numbers its questions about this limit in ascending order. Number is the number of this question, and
	// Answered is the number of the last question whose answer arrived. If the store served claims of a question after
	// Answered, that answer was lost. So the store counts what it took for them as held, and answers it again. The store
	// does not answer a question that arrives after one with a higher number.
	Number, Answered uint64

	// this replica asks no more. Its share expires when its clients' assignments have expired, or follows the clients to
	// other replicas
	Ends bool

	Held bool // this replica has held a share before: if the store does not know it, its data is lost
}

// In returns the same question in other tokens, of which this many are worth one of these.
func (a Ask) In(tokens float64) Ask {
	for _, n := range [...]*float64{&a.Rate, &a.Burst, &a.Saved, &a.Demand, &a.HeldRate, &a.HeldBurst, &a.Returned,
		&a.ClaimRate} {
		*n *= tokens
	}
	return a
}

// Share is the part of a limit that one replica may hand out until it expires.
type Share struct {
	Rate  float64 // tokens per second
	Burst float64 // tokens: the most that clients of this replica may hold, saved ones included
	Saved float64 // tokens that the replica may mint now, in addition to the tokens that it saved itself

	ClaimedRate, ClaimedBurst float64 // the part of Rate and Burst that was taken for claims: clients hold it already

	ClaimsOpen bool // there is a replica from which more may be taken for the claims

	FairRate, FairBurst float64 // what it should come down to if it holds more: others want the rest

	Processes int           // that hold shares
	TTL       time.Duration // of the share, from the time of the request
}

// In returns the same share in other tokens, of which this many are worth one of these.
func (s Share) In(tokens float64) Share {
	for _, n := range [...]*float64{&s.Rate, &s.Burst, &s.Saved, &s.ClaimedRate, &s.ClaimedBurst, &s.FairRate,
		&s.FairBurst} {
		*n *= tokens
	}
	return s
}
