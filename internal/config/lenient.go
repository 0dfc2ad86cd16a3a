package config

// A lenient reader takes what the reference takes, as it takes it, and notes a warning: no rule that the reference
// enforces is lost with a file that is refused. A strict one refuses what is probably a mistake.

// referenceKeys are the keys that the reference knows. It ignores them where they mean nothing.
var referenceKeys = []string{
	"domain", "key", "value", "descriptors", "rate_limit", "unit", "requests_per_unit", "unlimited", "shadow_mode", "quota_mode",
	"name", "replaces", "detailed_metric", "value_to_metric", "share_threshold", "metadata",
}
