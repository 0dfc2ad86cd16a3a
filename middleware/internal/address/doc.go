// Package address finds the address of a client behind proxies.
//
// A proxy appends the address of its peer to a list that it forwards. A client can write the start of that list itself,
// so only the part that trusted proxies appended counts: the list is read from its end, and the first address that does
// not belong to a trusted proxy is the client's.
package address
