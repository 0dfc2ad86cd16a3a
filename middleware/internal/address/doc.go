// Package address finds the address of a client behind proxies.
//
// A proxy appends the address of its peer to a list that it forwards. A client can write the beginning of that list
// itself, so only the part that trusted proxies appended counts: the list is read from its end, and the first address
// that is no trusted proxy's is the client's.
package address
