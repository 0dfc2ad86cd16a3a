// Package redissource keeps the operators' overrides in Redis, where all replicas share them. A Source implements
// override.Source.
//
// A write is one script: it changes records and appends the changes to a stream. Every replica follows the stream on a
// separate connection, and compares versions once a second. A replica whose place in the stream is gone reads all
// records again.
//
// Each change has the next version, and carries a random identifier of its write and the identifier of the write before
// it. So a replica notices when Redis has lost changes, even if as many new ones have been written since. Redis' state
// is then used, and the loss is logged and counted. The replica saves its previous overrides in a file. Only a person
// may write them to Redis again, because that could restore removed overrides.
//
// While Redis is unreachable the last overrides stay. A file keeps a copy of them, for a start without Redis.
//
// All methods may be called by any number of goroutines. The package does not check rules, and does not decide.
package redissource
