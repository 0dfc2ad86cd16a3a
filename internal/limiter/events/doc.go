// Package events sends CloudEvents about limits, usually to a webhook or a file: that a limit denied a request, that a
// soft limit is exceeded, that the usage of a limit has reached its rule's warn_at, or that a penalty has started.
// Package destination has the webhook.
//
// A decision calls Sink.Due, which reports whether an event of this kind about this counter is due: one for each kind,
// counter, limit and period. If it is, the decision fills in an Event and calls Send, which puts it into a bounded
// queue. Neither of the two waits. Events that do not fit into the queue are dropped and counted. Run takes events from
// the queue, and sends them until the destination has accepted them or they are too old.
//
// Several replicas that share counters may each send the event of a counter and period. All of them give it the same
// source and id, so that the receiver can remove duplicates.
//
// A Sink may be used by any number of goroutines; Run is called once.
//
// The package does not depend on decisions: the code that calls it describes the denial, and decides which text from
// requests an event may contain.
package events
