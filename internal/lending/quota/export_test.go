package quota

// For the tests of the package.
var (
	IntervalFor = intervalFor
	Divide      = divide
)
