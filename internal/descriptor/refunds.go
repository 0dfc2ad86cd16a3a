package descriptor

// Refunds is what a domain does with requests that give hits back.
type Refunds uint8

// The choices of refunds.
const (
	RefundsDefault Refunds = iota // not set: RefundsAllow
	RefundsAllow
	RefundsDeny // they only read the counter
)

// RefundsNames are the names in rule files; RefundsDefault has none.
var RefundsNames = []string{RefundsAllow: "allow", RefundsDeny: "deny"}
