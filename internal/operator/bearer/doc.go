// Package bearer checks the tokens with which operators authenticate.
//
// Tokens come from a setting, from a file, or both. The file is read for every check, so a token that is removed from
// it stops working immediately. A comparison always takes the same time, however many characters of a token are right.
//
// Tokens may be used by any number of goroutines.
//
// The package only identifies the owner of a token. The code that calls it decides the owner's rights. No error
// contains a token.
package bearer
