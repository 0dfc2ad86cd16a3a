// Package bearer knows the tokens by which operators show who they are.
//
// It owns reading and checking them (tokens.go): one from a setting, and those of a file, which is read for every
// question, so that a token that was taken out of it is worth nothing from then on. Tokens may be used by any number of
// goroutines. They are compared in a time that does not depend on what they have in common.
//
// It decides about nobody: what somebody with a token may do is known where it is asked for. No token is ever part of an
// error.
package bearer
