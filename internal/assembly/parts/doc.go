// Package parts is what package ratelimit needs of package assembly: work in the background, and places for what a
// program may choose. A Store, Rules and a Source of overrides are functions that packages ratelimit/redisstore and
// ratelimit/rulefiles give, so that a program links what it chooses, and no Redis or watcher of files else.
//
// Tasks collects the work that runs until the process stops, and closes connections and files then. Follow makes a
// limiter follow overrides.
package parts
