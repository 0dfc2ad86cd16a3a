package config

// A lenient reader accepts what envoyproxy/ratelimit accepts, with the same meaning, and warns about it. Otherwise it would reject
// files whose rules envoyproxy/ratelimit enforces. A strict reader rejects probable mistakes.

// referenceKeys are the keys that envoyproxy/ratelimit knows. It ignores them where they have no meaning.
var referenceKeys = []string{
	"domain", "key", "value", "descriptors", "rate_limit", "unit", "requests_per_unit", "unlimited", "shadow_mode", "quota_mode",
	"name", "replaces", "detailed_metric", "value_to_metric", "share_threshold", "metadata",
}
