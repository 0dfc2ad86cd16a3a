package config

// A lenient reader accepts what the reference accepts, with the same meaning, and warns about it. Otherwise it would refuse
// files whose rules the reference enforces. A strict reader refuses probable mistakes.

// referenceKeys are the keys that the reference knows. It ignores them where they have no meaning.
var referenceKeys = []string{
	"domain", "key", "value", "descriptors", "rate_limit", "unit", "requests_per_unit", "unlimited", "shadow_mode", "quota_mode",
	"name", "replaces", "detailed_metric", "value_to_metric", "share_threshold", "metadata",
}
