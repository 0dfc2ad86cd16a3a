// Package parts has the parts of package assembly that package ratelimit needs: background work, and types for the
// choices of a program. A Store, Rules and a Source of overrides are functions that packages ratelimit/redisstore and
// ratelimit/rulefiles provide. So a program links only the packages that it chooses, without Redis or a watcher of
// files if it uses neither.
//
// Tasks collects the work that runs until the process stops, and closes connections and files then. Follow applies the
// overrides of a source to a limiter.
package parts
