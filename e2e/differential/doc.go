// Package differential compares the decisions of two versions of package limiter: the one in internal/limiter, and a copy of an earlier one
// in the folder before. It is a safety net for a refactoring that changes no behaviour. When that is done, delete this folder.
//
// A World is drawn from a seed: rule files with every key of the rule language, settings, and steps. A step is a request, a change of
// rules, overrides or settings, or something that an operator asks. It says at what time it happens and how the store fails. Both
// versions take the same steps, each with stores of its own, and write down all that can be seen of each step: the decision, the
// takes that the store was asked for, and the error. From time to time they also write their metrics, statistics, hot keys and
// usage, and at the end their events. The first text that differs is the difference.
//
// Package adapter runs a World on internal/limiter. Its copy before/adapter runs it on the copied limiter. `go run ./differential/refresh
// COMMIT`, in the folder e2e, makes both copies from a commit.
//
// The types of this package belong to neither version, so that a refactoring may change the types of limiter and backend: it then
// changes package adapter too, and the copy keeps the adapter that fits it.
package differential
