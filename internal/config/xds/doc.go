// Package xds receives rules from a server over xDS: the aggregated discovery service in its state-of-the-world
// variant, with resources of the type ratelimit.config.ratelimit.v3.RateLimitConfig.
//
// A Client keeps one stream open and reconnects when it ends. It turns each resource into the values of a rule file,
// compiles them with package config, and applies the result. It answers each set of rules with an ACK or a NACK, and
// delays repeated NACKs, because some servers answer a NACK immediately with the same rules.
//
// Run is called once. All other methods may be called by any goroutine. Applied rules are immutable.
//
// The package does not interpret rules (package config does), does not read the environment, and is not an xDS server.
package xds
