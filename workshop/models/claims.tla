------------------------------- MODULE claims -------------------------------
\* Processes divide the rate of one limit in Redis: package redisshares with renew.lua, and Ask and Answer of package quota. One process ends or
\* is killed. Its clients still use what it gave them. They go to other processes, which claim that rate.
\*
\* Rates are whole numbers here. Bursts are left out: they follow the rates. A claim is what the client really holds: what the
\* code does about claims that were measured too high, and after a loss of data, is tested in redisshares.
\*
\* A question stays in asks until Redis executes it, which may be after the process has given up and asked again: a packet of the
\* earlier connection may be sent again later. Answers may be lost.
EXTENDS Integers, FiniteSets

CONSTANTS
  Processes,
  First,        \* the process that holds the whole rate at the beginning, and that ends
  Rate,
  End,          \* the last tick
  MaxAsks,      \* questions that are ever asked
  Faults,       \* "kill", "end": First is killed, or ends in good order. "stranger": at the beginning a client claims a rate that it does not
                \* hold any more
  Off           \* guards that are removed on purpose

ASSUME Off \subseteq {"number", "answered", "more", "rest", "since", "held", "expired", "unanswered", "waits", "until"}

VARIABLES
  now,
  fields,   \* the hash in Redis
  process,
  asks, asked,
  moving,   \* the rate of the ended process' clients that have not come to another one
  expires,  \* when nothing is left of what the ended process gave its clients
  stranger  \* the client that claims too much has come

vars == <<now, fields, process, asks, asked, moving, expires, stranger>>

Silent == 1 \* a process that did not ask for that long is gone
Lasts == 2  \* a share

On(guard) == guard \notin Off
Max(a, b) == IF a > b THEN a ELSE b
Min(a, b) == IF a < b THEN a ELSE b
RECURSIVE Sum(_, _)
Sum(f, keys) == IF keys = {} THEN 0 ELSE LET k == CHOOSE k \in keys : TRUE IN f[k] + Sum(f, keys \ {k})

NoField == [exists |-> FALSE, rate |-> 0, renewed |-> 0, expires |-> 0, ended |-> FALSE, number |-> 0, claimed |-> 0, claim |-> 0, more |-> 0, since |-> 0]

NoProcess == [
  alive |-> TRUE,
  share |-> 0, until |-> 0,                                 \* what it may hand out
  out |-> 0,                                                \* what its clients may use, as far as it knows
  brought |-> 0,                                            \* what clients use that the ended process gave them, before this one is told to count it
  claim |-> 0, came |-> 0,                                  \* what it claims for clients, and when the first of them came
  waits |-> FALSE, held |-> 0, at |-> 0,                    \* the question without an answer
  questions |-> 0, answered |-> 0]
Dead == [NoProcess EXCEPT !.alive = FALSE]

Init ==
  /\ now = 0
  /\ fields = [p \in Processes |-> IF p = First THEN [NoField EXCEPT !.exists = TRUE, !.rate = Rate, !.expires = Lasts] ELSE NoField]
  /\ process = [p \in Processes |-> IF p = First THEN [NoProcess EXCEPT !.share = Rate, !.until = Lasts, !.out = Rate] ELSE NoProcess]
  /\ asks = {} /\ asked = 0 /\ moving = 0 /\ expires = 0 /\ stranger = FALSE

AllAlive == \A p \in Processes : process[p].alive

\* ---- A process and its clients ----

\* Before it asks, clients may have confirmed that they use less. The last question of a process that ends has ends.
Ask(p, ends) ==
  LET x == process[p] IN
  /\ x.alive /\ ~x.waits /\ asked < MaxAsks
  /\ ends => p = First /\ AllAlive /\ "end" \in Faults
  /\ asked' = asked + 1
  /\ \E out \in {0, x.out} :
     /\ asks' = asks \cup {[from |-> p, number |-> x.questions + 1, answered |-> x.answered, held |-> out, claim |-> IF ends THEN 0 ELSE x.claim,
                            age |-> IF x.claim > 0 THEN now - x.came ELSE 0, ends |-> ends]}
     /\ process' = [process EXCEPT ![p] = IF ends THEN Dead ELSE [x EXCEPT !.out = out, !.waits = TRUE, !.held = out, !.at = now, !.questions = @ + 1]]
     /\ moving' = IF ends THEN out + x.brought ELSE moving
     /\ expires' = IF ends THEN x.until ELSE expires
  /\ UNCHANGED <<now, fields, stranger>>

\* What a process is after an answer.
Answered(x, rate, claimed) ==
  [x EXCEPT !.waits = FALSE, !.held = 0, !.at = 0, !.answered = x.questions, !.share = rate, !.until = x.at + Lasts,
    !.out = @ + claimed, !.brought = Max(@ - claimed, 0), !.claim = Max(@ - claimed, 0)]

\* No answer came in time. Redis may have taken what was not held.
Unanswered(p) ==
  LET x == process[p] IN
  /\ x.waits
  /\ process' = [process EXCEPT ![p] = [x EXCEPT !.waits = FALSE, !.held = 0, !.at = 0, !.share = IF On("unanswered") THEN Min(@, x.held) ELSE @]]
  /\ UNCHANGED <<now, expires, fields, asks, asked, moving, stranger>>

\* Clients get all that there is.
HandOut(p) ==
  LET x == process[p] IN
  /\ x.alive /\ x.out < x.share
  /\ On("until") => now < x.until
  /\ On("waits") => ~x.waits
  /\ process' = [process EXCEPT ![p].out = x.share]
  /\ UNCHANGED <<now, expires, fields, asks, asked, moving, stranger>>

\* A process is killed. In this model a stranger came before it was last heard of.
Kill(p) ==
  /\ p = First /\ "kill" \in Faults /\ AllAlive
  /\ stranger => fields[p].renewed > 0
  /\ process' = [process EXCEPT ![p] = Dead]
  /\ moving' = process[p].out + process[p].brought
  /\ expires' = process[p].until
  /\ UNCHANGED <<now, fields, asks, asked, stranger>>

Claims(p, holds) == [process EXCEPT ![p] = [process[p] EXCEPT !.claim = @ + 1, !.came = IF process[p].claim = 0 THEN now ELSE @, !.brought = @ + holds]]

\* A client of the ended process comes to another one.
Come(p) ==
  /\ moving > 0 /\ process[p].alive
  /\ moving' = moving - 1
  /\ process' = Claims(p, 1)
  /\ UNCHANGED <<now, expires, fields, asks, asked, stranger>>

Stranger(p) ==
  /\ "stranger" \in Faults /\ now = 0 /\ ~stranger /\ AllAlive
  /\ stranger' = TRUE
  /\ process' = Claims(p, 0)
  /\ UNCHANGED <<now, expires, fields, asks, asked, moving>>

\* ---- renew.lua ----

\* The ways to serve the claims of all processes out of the rates of those that are gone. Which part a claim gets where there is too
\* little does not matter here.
RECURSIVE Served(_, _, _)
Served(f, me, gone) ==
  IF gone = {} THEN {f} ELSE UNION {
    LET due == [q \in Processes |-> IF q \notin gone /\ (On("since") => f[q].since >= f[p].renewed) THEN f[q].claim ELSE 0]
        taken == Min(Sum(due, Processes), f[p].rate)
        parts == {g \in [Processes -> 0..taken] : (\A q \in Processes : g[q] <= due[q]) /\ Sum(g, Processes) = taken}
        After(g) == [q \in Processes |->
          IF q = p THEN [f[q] EXCEPT !.rate = @ - taken]
          ELSE IF q = me THEN [f[q] EXCEPT !.claimed = @ + g[q], !.claim = @ - g[q]]
          ELSE [f[q] EXCEPT !.rate = @ + g[q], !.claim = @ - g[q], !.more = @ + g[q]]]
    IN UNION {Served(After(g), me, gone \ {p}) : g \in parts} : p \in gone}

Execute(m) ==
  LET p == m.from
      before == [q \in Processes |-> IF fields[q].expires <= now THEN NoField ELSE fields[q]]
      own == before[p]
      stale == own.exists /\ m.number < own.number
      \* What was taken for claims counts as held until there is an answer that says so.
      kept == IF On("answered") /\ own.number > m.answered THEN own.claimed ELSE 0
      claimed == kept + (IF On("more") THEN own.more ELSE 0)
      asking == [NoField EXCEPT !.exists = TRUE, !.rate = own.rate, !.renewed = now, !.expires = now + Lasts, !.ended = m.ends, !.number = m.number,
        !.claimed = claimed, !.claim = IF On("rest") THEN Max(m.claim - claimed, 0) ELSE m.claim, !.since = now - m.age]
      f0 == [q \in Processes |-> IF q = p THEN asking ELSE before[q]]
      \* An assumption: a process that is silent has ended. If Redis did not hear of a living one for so long, claims for clients of
      \* another process could take what it holds.
      gone == {q \in Processes \ {p} : ~process[q].alive /\ before[q].exists /\ before[q].rate > 0 /\ before[q].renewed <= now - Silent}
  IN
  /\ asks' = asks \ {m}
  /\ IF On("number") /\ stale
     THEN UNCHANGED <<fields, process>>
     ELSE \E f \in Served(f0, p, gone) :
       LET free == Rate - Sum([q \in Processes |-> f[q].rate], Processes \ {p})
           \* Others may have got what a process held whose share has expired.
           held == IF On("expired") THEN Min(m.held, Max(own.rate, free)) ELSE m.held
           least == (IF On("held") THEN held ELSE 0) + f[p].claimed
       IN \E grant \in {0, IF m.ends THEN 0 ELSE free} :
       LET rate == Max(least, grant) IN
       /\ fields' = [q \in Processes |-> IF q = p THEN [f[q] EXCEPT !.rate = rate] ELSE f[q]]
       /\ \/ process' = process \* the answer is lost or late
          \/ /\ process[p].waits /\ process[p].questions = m.number
             /\ process' = [process EXCEPT ![p] = Answered(process[p], rate, f[p].claimed)]
  /\ UNCHANGED <<now, expires, asked, moving, stranger>>

\* ---- Time ----

\* What clients hold of a process ends before its share does. (They hold assignments of 30 s, and a share lasts 45 s.)
Tick ==
  LET next == now + 1
      over == expires <= next
      Past(x) == IF On("until") /\ x.until <= next THEN [x EXCEPT !.out = 0, !.share = 0] ELSE x
      Without(x) == IF over THEN [x EXCEPT !.brought = 0, !.claim = 0, !.came = 0] ELSE x
  IN
  /\ now < End
  /\ now' = next
  /\ process' = [p \in Processes |-> Past(IF AllAlive THEN process[p] ELSE Without(process[p]))]
  /\ moving' = IF over THEN 0 ELSE moving
  /\ UNCHANGED <<expires, fields, asks, asked, stranger>>

Next ==
  \/ Tick
  \/ \E p \in Processes : Ask(p, FALSE) \/ Ask(p, TRUE) \/ Unanswered(p) \/ HandOut(p) \/ Kill(p) \/ Come(p) \/ Stranger(p)
  \/ \E m \in asks : Execute(m)

Spec == Init /\ [][Next]_vars

\* ---- What holds ----

\* All clients together never use more than the rate.
Bounded == moving + Sum([p \in Processes |-> process[p].out + process[p].brought], Processes) <= Rate

\* Redis counts at least what the clients of a process that asks hold.
Recorded == \A p \in Processes : process[p].alive => fields[p].rate >= process[p].out
\* Redis never gives out more than the rate.
Divided == Sum([p \in Processes |-> IF fields[p].expires > now THEN fields[p].rate ELSE 0], Processes) <= Rate

Symmetric == {f \in [Processes -> Processes] : f[First] = First /\ \A p, q \in Processes : f[p] = f[q] => p = q}
=============================================================================
