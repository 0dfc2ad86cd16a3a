package quota

// Measured says how many requests per second a subscriber that has just joined was asked for before, as its client has measured it. Its demand is
// known then, so it is treated like one that has reported.
func (s *Subscriber) Measured(demand float64) { s.Demand, s.reports = demand, 1 }
