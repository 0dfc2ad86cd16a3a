-------------------------------- MODULE lease --------------------------------
\* Leases of one window: package internal/lending/lease. A process takes permits from the store in advance and spends them without asking.
\*
\* A message stays in asks, answers or refunds after it was sent. So it can be delivered late, after a later one, or never. The client of Redis sends
\* nothing twice, and a process has one question in flight: after a failure it asks again, although the store may still execute the
\* first question.
\*
\* All clocks run equally fast; now counts ticks, Ticks of them are a window of the store.
EXTENDS Integers, FiniteSets

CONSTANTS
  Processes,
  Limit,
  Ticks,   \* of a window
  Within,  \* a refund is carried out within this many ticks, or never
  End,     \* the last tick
  MaxAsks, \* questions that are ever asked
  Forgets, \* TRUE: the store may fail over, once, to a copy without the last writes
  Off      \* guards that are removed on purpose

ASSUME Off \subseteq {"charged", "sent", "failed", "end", "dormant", "aside", "refund"}

VARIABLES
  now,
  count,    \* in the store, in this window
  copy,     \* the count that a replica has
  lease,    \* of each process
  asks, answers, refunds, asked,
  used,     \* permits used in this window
  forgot    \* hits of this window that the store forgot

vars == <<now, count, copy, lease, asks, answers, refunds, asked, used, forgot>>

On(guard) == guard \notin Off
Min(a, b) == IF a < b THEN a ELSE b
Max(a, b) == IF a > b THEN a ELSE b
Window == now \div Ticks
WindowEnd == (Window + 1) * Ticks
RECURSIVE Sum(_, _)
Sum(f, keys) == IF keys = {} THEN 0 ELSE LET k == CHOOSE k \in keys : TRUE IN f[k] + Sum(f, keys \ {k})

\* pool: permits that are not used. end: until then they may be used. waits: a question is in flight, number is its number, sent when it
\* was sent. aside: permits of the lease that are set aside for the request that asks; it ends at asideEnd.
None == [pool |-> 0, end |-> 0, waits |-> FALSE, number |-> 0, sent |-> 0, aside |-> 0, asideEnd |-> 0]

Init ==
  /\ now = 0 /\ count = 0 /\ copy = 0 /\ used = 0 /\ forgot = 0 /\ asked = 0
  /\ lease = [p \in Processes |-> None]
  /\ asks = {} /\ answers = {} /\ refunds = {}

\* A request that the lease can answer.
Use(p) ==
  LET l == lease[p] IN
  /\ l.pool > 0
  /\ On("end") => now < l.end
  /\ lease' = [lease EXCEPT ![p].pool = @ - 1]
  /\ used' = used + 1
  /\ UNCHANGED <<now, count, copy, asks, answers, refunds, asked, forgot>>

\* A request of two hits that the lease cannot answer. One permit of the lease may be set aside for it; the store is asked for the other hit,
\* and for one to keep.
Ask(p) ==
  LET l == lease[p] IN
  /\ ~l.waits /\ l.pool < 2 /\ asked < MaxAsks
  /\ asked' = asked + 1
  /\ \E aside \in 0..(IF now < l.end THEN l.pool ELSE 0) :
       lease' = [lease EXCEPT ![p] = [l EXCEPT !.waits = TRUE, !.number = @ + 1, !.sent = now, !.pool = @ - aside, !.aside = aside,
         !.asideEnd = IF aside > 0 THEN l.end ELSE 0]]
  /\ asks' = asks \cup {[from |-> p, number |-> l.number + 1]}
  /\ IF On("charged") THEN UNCHANGED used ELSE used' = used + 1 \* the request is let through before the store has counted it
  /\ UNCHANGED <<now, count, copy, answers, refunds, forgot>>

\* The store counts the hits, or denies them. Its answer says how long its window lasts.
Count(m) ==
  LET n == Min(2, Limit - count) IN
  /\ asks' = asks \ {m}
  /\ count' = count + n
  /\ answers' = answers \cup {[to |-> m.from, number |-> m.number, granted |-> n, lasts |-> WindowEnd - now, window |-> Window]}
  /\ UNCHANGED <<now, copy, lease, refunds, asked, used, forgot>>

\* The answer arrives. What is left of the lease before is worth nothing, unless the window is the same: the lease ended with its window.
Answered(m) ==
  LET p == m.to
      l == lease[p]
      end == (IF On("sent") THEN l.sent ELSE now) + m.lasts
      old == IF On("dormant") /\ l.end # end THEN 0 ELSE l.pool
      \* A permit that was set aside counts with the hit that was asked for, if there is a moment at which both are valid.
      whole == l.aside = 1 /\ m.granted > 0 /\ (On("aside") => now < l.asideEnd)
  IN
  /\ l.waits /\ l.number = m.number
  /\ answers' = answers \ {m}
  /\ used' = used + (IF whole THEN 2 ELSE 0)
  /\ lease' = [lease EXCEPT ![p] = [None EXCEPT !.number = l.number, !.end = end,
       !.pool = old + m.granted - (IF whole THEN 1 ELSE 0) + (IF ~whole /\ l.asideEnd = end THEN l.aside ELSE 0)]]
  /\ UNCHANGED <<now, count, copy, asks, refunds, asked, forgot>>

\* No answer in time. The store may have counted it, or may do so later. A permit that was set aside returns to its lease.
Failed(p) ==
  LET l == lease[p] IN
  /\ l.waits
  /\ lease' = [lease EXCEPT ![p] = [l EXCEPT !.waits = FALSE, !.aside = 0, !.asideEnd = 0, !.sent = 0,
       !.pool = @ + l.aside + (IF On("failed") THEN 0 ELSE 2), !.end = IF On("failed") THEN @ ELSE WindowEnd]]
  /\ UNCHANGED <<now, count, copy, asks, answers, refunds, asked, used, forgot>>

\* A sweep gives back what is not used, if that is right even at the end of the time in which the store may do it. It drops a lease that is
\* over.
GiveBack(p) ==
  LET l == lease[p] IN
  /\ l.pool > 0
  /\ IF now < l.end /\ (On("refund") => now + Within < l.end)
     THEN refunds' = refunds \cup {[from |-> p, end |-> l.end, hits |-> l.pool, until |-> now + Within]}
     ELSE now >= l.end /\ UNCHANGED refunds
  /\ lease' = [lease EXCEPT ![p].pool = 0]
  /\ UNCHANGED <<now, count, copy, asks, answers, asked, used, forgot>>

Refund(m) ==
  /\ refunds' = refunds \ {m}
  /\ count' = IF m.hits > count THEN count ELSE count - m.hits \* one of more than what is used is dropped
  /\ UNCHANGED <<now, copy, lease, asks, answers, asked, used, forgot>>

Replicate ==
  /\ Forgets /\ copy < count
  /\ copy' = count
  /\ UNCHANGED <<now, count, lease, asks, answers, refunds, asked, used, forgot>>

Forget ==
  /\ Forgets /\ forgot = 0 /\ copy < count
  /\ forgot' = count - copy
  /\ count' = copy
  /\ UNCHANGED <<now, copy, lease, asks, answers, refunds, asked, used>>

Tick ==
  LET next == now + 1
      new == next % Ticks = 0
  IN
  /\ now < End
  /\ now' = next
  /\ count' = IF new THEN 0 ELSE count
  /\ copy' = IF new THEN 0 ELSE copy
  /\ used' = IF new THEN 0 ELSE used
  /\ forgot' = IF new THEN 0 ELSE forgot
  /\ refunds' = {m \in refunds : m.until >= next}
  /\ UNCHANGED <<lease, asks, answers, asked>>

Next ==
  \/ Tick \/ Replicate \/ Forget
  \/ \E p \in Processes : Use(p) \/ Ask(p) \/ Failed(p) \/ GiveBack(p)
  \/ \E m \in asks : Count(m)
  \/ \E m \in answers : Answered(m)
  \/ \E m \in refunds : Refund(m)

Spec == Init /\ [][Next]_vars

\* ---- What holds ----

\* In no window is more used than the limit and what was forgotten.
Bounded == used <= Limit + forgot

Symmetric == {f \in [Processes -> Processes] : \A p, q \in Processes : f[p] = f[q] => p = q}
==============================================================================
