// Package first has the first lines of a program that allows each customer 10 requests a second, once for each library.
// Its test counts the lines and the names of the library in them, for docs/contributing/libraries.md. Each function
// returns the check of one request.
package first
