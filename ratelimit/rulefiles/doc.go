// Package rulefiles lets a limiter of package ratelimit follow files: rules in a directory, and overrides in a file.
//
//	limiter, err := ratelimit.Open(ctx, ratelimit.Options{Dir: rulefiles.Dir("/etc/limits")})
//
// Rule files that are part of the program need no package: ratelimit.Options.Files takes an embed.FS.
package rulefiles
