// Package bearer checks the tokens with which operators authenticate.
//
// Tokens come from a setting, from a file, or both. The file is read for every check, so a token that is removed from
// it stops working at once. A comparison takes the same time however much of a token is right.
//
// Tokens may be used by any number of goroutines.
//
// The package only identifies the owner of a token. The caller decides what that owner may do. No error contains a
// token.
package bearer
