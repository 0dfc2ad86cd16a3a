// Package adapter runs a World of package differential on one version of package limiter, and writes down what that version does.
//
// It imports everything that may differ between the versions, so that its copy in differential/before, with other import paths, runs
// the other version. Change it together with the types of limiter and backend. It must not hide anything: what it writes is all that the
// comparison sees.
package adapter
