package quota

import "time"

// Ask is what one process asks of the store that divides a limit among processes.
type Ask struct {
	Key string // of the bucket

	Rate  float64 // of the whole limit, in tokens per second
	Burst float64 // of the whole limit, in tokens
	Saved float64 // tokens that are saved at the beginning, if nobody holds a share yet: at most Burst

	Demand float64 // requests per second that arrive at this process

	HeldRate  float64 // the part of its rate that this process cannot give back: its clients may still use it
	HeldBurst float64 // the part of its burst that it keeps, in tokens
	Returned  float64 // tokens that it has saved and returns: they are no longer part of HeldBurst

	// ClaimRate is the rate of clients that came from a process that has ended. It is taken, with its part of the tokens, out of
	// what such processes still hold, as far as there is some.
	ClaimRate float64

	// ClaimAge is how long ago the first of these clients came. It cannot have come from a process that has asked since.
	ClaimAge time.Duration

	// Number is the number of this question of the process about this limit, Answered that of the last one whose answer arrived. What was taken for
	// claims by a later question is counted as held, and answered again.
	Number, Answered uint64

	Ends bool // this process asks no more. What it holds expires when it has expired at its clients, or goes with them to other processes

	Held bool // this process has held a share before: if the store does not know it, its data is lost
}

// Share is the part of a limit that one process may hand out until it expires.
type Share struct {
	Rate  float64 // tokens per second
	Burst float64 // tokens: the most that clients of this process may hold, saved ones included
	Saved float64 // tokens that the process may mint now, in addition to what it has saved already

	ClaimedRate, ClaimedBurst float64 // what of Rate and Burst was taken for claims: clients hold it already

	ClaimsOpen bool // there is a process from which more may be taken for the claims

	FairRate, FairBurst float64 // what it should come down to if it holds more: others want the rest

	Processes int           // that hold shares
	TTL       time.Duration // of the share, from the time of the request
}
