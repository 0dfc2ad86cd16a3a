// Package redissource keeps the operators' overrides in Redis, where all replicas share them. A Source implements
// override.Source.
//
// A write is one script: it changes records and appends what it changed to a stream. Every replica follows the stream
// on a connection of its own, and compares versions once a second. A replica whose place in the stream is gone reads
// all records again.
//
// Each change has the next version, and carries a random identifier of its write and the identifier of the write before
// it. So a replica notices when Redis has lost changes, even if there are as many new ones: the version has gone back.
// Redis' state is then used, and the loss is logged and counted. What the replica had is kept in a file. It is never
// written to Redis without a person: that could bring back what was removed.
//
// While Redis cannot be reached the last overrides stay. A file keeps a copy of them, for a start without Redis.
//
// All methods may be called by any number of goroutines. The package does not check rules, and does not decide.
package redissource
