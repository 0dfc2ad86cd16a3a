------------------------------ MODULE regions ------------------------------
\* One limit of one window algorithm across regions, in the mode escrow. A home
\* has the counter and grants permits to the accounts of the regions. A region
\* spends permits from its account without asking.
\*
\* A message stays in asks or answers after it was sent. So it can be delivered
\* late, twice, after a later one, or never. That covers a lost answer, a process
\* that pauses between asking and applying, and two processes that apply one answer.
\*
\* All clocks show the same time; now counts ticks, Ticks of them are a window.
\* Time may stop anywhere, and any step may be late by any number of ticks.
EXTENDS Integers, FiniteSets

CONSTANTS
  Regions,
  Limit,
  Ticks,     \* of a window
  End,       \* the last tick
  MaxAsks,   \* questions that are ever asked
  MaxOpened, \* incarnations of one region's account
  Moves,     \* TRUE: the operator may move the home role from home 1 to home 2
  Forgets,   \* the stores that may fail over, once, to a copy without the last writes: "home", "account"
  Off        \* guards that are removed on purpose

ASSUME Off \subseteq {"seq", "first", "record", "cumulative", "window", "incarnation", "expiry", "apply", "epoch", "role", "wait", "full"}

VARIABLES
  now,
  homes,   \* the state of homes 1 and 2
  moved,   \* the operator has moved the role: home 1 is not acknowledged any more
  account, \* of each region
  opened,  \* incarnations of each region's account so far
  asks, answers, asked,
  copies,  \* what a replica has of home 1 and of the accounts
  used,    \* permits used in this window
  forgot,  \* grants, uses and returns of this window that a store forgot
  applied, \* grants of this window that were applied
  twice    \* "charged", "applied": some grant was, twice

vars == <<now, homes, moved, account, opened, asks, answers, asked, copies, used, forgot, applied, twice>>

On(guard) == guard \notin Off
Window == now \div Ticks
WindowEnd == (Window + 1) * Ticks
Never == End + Ticks
None == -1
RoleLife == Ticks \* how long home 1 may act after an acknowledgement

NoAccount == [inc |-> 0, epoch |-> 0, seq |-> 0, at |-> None, free |-> 0, used |-> 0, returned |-> 0, expires |-> Never, window |-> None]
NoRecord == [seq |-> 0, granted |-> 0, valid |-> 0, returned |-> 0]

Max(a, b) == IF a > b THEN a ELSE b
Min(a, b) == IF a < b THEN a ELSE b
RECURSIVE Sum(_, _)
Sum(f, keys) == IF keys = {} THEN 0 ELSE LET k == CHOOSE k \in keys : TRUE IN f[k] + Sum(f, keys \ {k})

Empty == [count |-> 0, charged |-> 0, records |-> {}]

Init ==
  /\ now = 0
  /\ homes = [h \in {1, 2} |-> [on |-> h = 1, role |-> IF h = 1 /\ Moves THEN 1 ELSE Never, state |-> Empty]]
  /\ moved = FALSE
  /\ account = [r \in Regions |-> NoAccount]
  /\ opened = [r \in Regions |-> 0]
  /\ asks = {} /\ answers = {} /\ asked = 0
  /\ copies = [home |-> Empty, account |-> account]
  /\ used = 0 /\ forgot = 0
  /\ applied = {} /\ twice = {}

\* ---- An account, in the Redis of its region ----

\* Callers in a region use what there is. (Steps of several permits keep the model small.)
Use(r) ==
  /\ account[r].free > 0
  /\ account' = [account EXCEPT ![r].free = 0, ![r].used = @ + account[r].free]
  /\ used' = used + account[r].free
  /\ UNCHANGED <<now, homes, moved, opened, asks, answers, asked, copies, forgot, applied, twice>>

\* A process asks home h, with one script in its own Redis. The script opens an account if there is none of this epoch, and sets
\* aside up to one permit that is not needed: the question says how many were set aside, in all. The question after an
\* answer has the next number. The same question again has the same number and time.
Ask(r, h) ==
  LET a == account[r]
      opens == a.inc = 0 \/ (On("epoch") /\ h > a.epoch)
      new == [NoAccount EXCEPT !.inc = IF On("incarnation") THEN opened[r] + 1 ELSE 1, !.epoch = h]
  IN
  /\ homes[h].on /\ asked < MaxAsks
  /\ opens => opened[r] < MaxOpened
  /\ (On("epoch") /\ ~opens) => h = a.epoch
  /\ \E back \in 0..(IF opens \/ a.returned > 0 THEN 0 ELSE Min(a.free, 1)) :
       LET at == IF opens \/ a.at = None \/ ~On("first") THEN now ELSE a.at
           b == IF opens THEN [new EXCEPT !.at = at] ELSE [a EXCEPT !.at = at, !.free = @ - back, !.returned = @ + back]
       IN
       /\ account' = [account EXCEPT ![r] = b]
       /\ asks' = asks \cup {[region |-> r, inc |-> b.inc, home |-> h, seq |-> b.seq + 1, at |-> at, returned |-> b.returned, window |-> b.window]}
  /\ opened' = IF opens THEN [opened EXCEPT ![r] = @ + 1] ELSE opened
  /\ asked' = asked + 1
  /\ UNCHANGED <<now, homes, moved, answers, copies, used, forgot, applied, twice>>

\* A process applies an answer. Its expiry is absolute: from the moment of asking, which Redis has noted.
Apply(m) ==
  LET r == m.region
      a == account[r]
      expires == IF On("expiry") THEN m.lasts ELSE now + m.lasts
      grant == <<r, m.inc, m.seq, m.home>>
  IN
  /\ a.inc = m.inc
  /\ On("apply") => a.seq = m.seq - 1
  /\ expires > now
  /\ account' = [account EXCEPT ![r].free = @ + m.granted, ![r].seq = m.seq, ![r].at = None, ![r].expires = expires, ![r].window = m.window]
  /\ applied' = applied \cup {grant}
  /\ twice' = IF grant \in applied THEN twice \cup {"applied"} ELSE twice
  /\ UNCHANGED <<now, homes, moved, opened, asks, answers, asked, copies, used, forgot>>

\* The Redis of a region loses its account, with all replicas.
Flush(r) ==
  /\ account[r].inc > 0
  /\ account' = [account EXCEPT ![r] = NoAccount]
  /\ copies' = [copies EXCEPT !.account[r] = NoAccount]
  /\ UNCHANGED <<now, homes, moved, opened, asks, answers, asked, used, forgot, applied, twice>>

\* ---- A home ----

Acts(h) == homes[h].on /\ (On("role") => now < homes[h].role)

\* Callers in the home region use what is left.
Serve(h) ==
  LET left == Limit - homes[h].state.count IN
  /\ Acts(h) /\ left > 0
  /\ homes' = [homes EXCEPT ![h].state.count = Limit, ![h].state.charged = @ + left]
  /\ used' = used + left
  /\ UNCHANGED <<now, moved, account, opened, asks, answers, asked, copies, forgot, applied, twice>>

Answer(h, m) ==
  LET s == homes[h].state
      known == {x \in s.records : x.region = m.region /\ x.inc = m.inc}
      record == IF known = {} THEN NoRecord ELSE (CHOOSE x \in known : TRUE).says
      more == IF On("cumulative") THEN Max(m.returned - record.returned, 0) ELSE m.returned
      count == Max(s.count - more, 0)
      others == IF On("record") THEN s.records \ known ELSE {x \in s.records : x.region # m.region}
      repeated == m.seq <= record.seq
      Keep(n, says) == homes' = [homes EXCEPT ![h].state = [
        count |-> count + n, charged |-> s.charged + n - (s.count - count),
        records |-> others \cup {[region |-> m.region, inc |-> m.inc, says |-> [says EXCEPT !.returned = Max(m.returned, record.returned)]]}]]
      Say(n, v) == answers' = answers \cup {[region |-> m.region, inc |-> m.inc, home |-> h, seq |-> m.seq, granted |-> n, lasts |-> IF On("expiry") THEN m.at + v ELSE v, window |-> Window]}
  IN
  /\ Acts(h)
  /\ m.home = h
  /\ On("window") => m.window \in {None, Window}
  /\ IF repeated /\ On("seq")
     THEN /\ Keep(0, record)
          /\ IF m.seq = record.seq THEN Say(record.granted, record.valid) ELSE UNCHANGED answers
          /\ UNCHANGED twice
     ELSE \/ Keep(0, record) /\ UNCHANGED <<answers, twice>> \* nothing is granted
          \/ LET n == Min(Limit - count, 2) IN
             /\ n > 0
             /\ Keep(n, [NoRecord EXCEPT !.seq = m.seq, !.granted = n, !.valid = WindowEnd - now])
             /\ Say(n, WindowEnd - now)
             /\ twice' = IF repeated THEN twice \cup {"charged"} ELSE twice
  /\ UNCHANGED <<now, moved, account, opened, asks, asked, copies, used, forgot, applied>>

\* ---- The home role: a lease, which the other regions acknowledge ----

Acknowledge ==
  /\ Moves /\ ~moved
  /\ homes' = [homes EXCEPT ![1].role = now + RoleLife]
  /\ UNCHANGED <<now, moved, account, opened, asks, answers, asked, copies, used, forgot, applied, twice>>

Move ==
  /\ Moves /\ ~moved
  /\ moved' = TRUE
  /\ UNCHANGED <<now, homes, account, opened, asks, answers, asked, copies, used, forgot, applied, twice>>

\* Home 2 does not know what home 1 has granted in this window, so it begins with all of it used.
Begin ==
  /\ moved /\ ~homes[2].on
  /\ On("wait") => now >= homes[1].role
  /\ homes' = [homes EXCEPT ![2].on = TRUE, ![2].state.count = IF On("full") THEN Limit ELSE 0]
  /\ UNCHANGED <<now, moved, account, opened, asks, answers, asked, copies, used, forgot, applied, twice>>

\* ---- Redis forgets acknowledged writes ----

Grants(s) == s.charged + Sum([x \in s.records |-> x.says.returned], s.records)

Replicate ==
  /\ Forgets # {} /\ forgot = 0
  /\ copies' = [copies EXCEPT !.home = IF "home" \in Forgets THEN homes[1].state ELSE @, !.account = IF "account" \in Forgets THEN account ELSE @]
  /\ UNCHANGED <<now, homes, moved, account, opened, asks, answers, asked, used, forgot, applied, twice>>

HomeForgets ==
  /\ "home" \in Forgets /\ Grants(homes[1].state) > Grants(copies.home)
  /\ forgot = 0
  /\ forgot' = Grants(homes[1].state) - Grants(copies.home)
  /\ homes' = [homes EXCEPT ![1].state = copies.home]
  /\ UNCHANGED <<now, moved, account, opened, asks, answers, asked, copies, used, applied, twice>>

AccountForgets(r) ==
  LET a == account[r]
      c == copies.account[r]
      lost == a.used + a.returned - c.used - c.returned
  IN
  /\ "account" \in Forgets /\ forgot = 0
  /\ a.inc = c.inc /\ lost > 0
  /\ forgot' = lost
  /\ account' = [account EXCEPT ![r] = c]
  /\ UNCHANGED <<now, homes, moved, opened, asks, answers, asked, copies, used, applied, twice>>

\* ---- Time ----

\* Keys expire. In a new window the counts of the last one are gone.
Tick ==
  LET next == now + 1
      new == next % Ticks = 0
      Fresh(a) == IF a.expires <= next THEN NoAccount ELSE a
  IN
  /\ now < End
  /\ now' = next
  /\ account' = [r \in Regions |-> Fresh(account[r])]
  /\ homes' = IF new THEN [h \in {1, 2} |-> [homes[h] EXCEPT !.state = Empty]] ELSE homes
  /\ copies' = [home |-> IF new THEN Empty ELSE copies.home, account |-> [r \in Regions |-> Fresh(copies.account[r])]]
  /\ used' = IF new THEN 0 ELSE used
  /\ forgot' = IF new THEN 0 ELSE forgot
  /\ applied' = IF new THEN {} ELSE applied
  /\ answers' = IF On("expiry") THEN {m \in answers : m.lasts > next} ELSE answers \* the others are never applied
  /\ UNCHANGED <<moved, opened, asks, asked, twice>>

Next ==
  \/ Tick \/ Acknowledge \/ Move \/ Begin \/ Replicate \/ HomeForgets
  \/ \E r \in Regions : Use(r) \/ Flush(r) \/ AccountForgets(r)
  \/ \E h \in {1, 2} : Serve(h) \/ (\E r \in Regions : Ask(r, h)) \/ (\E m \in asks : Answer(h, m))
  \/ \E m \in answers : Apply(m)

Spec == Init /\ [][Next]_vars

\* ---- What holds ----

\* In no window is more used than the limit and what was forgotten.
Bounded == used <= Limit + forgot

\* Home has counted all that was used and all that can still be used in this window.
Usable == {m \in answers : m.inc = account[m.region].inc /\ m.seq = account[m.region].seq + 1 /\ m.lasts > now}
Pending == {<<m.region, m.inc, m.seq>> : m \in Usable}
Conserved ==
  LET amount == [g \in Pending |-> (CHOOSE m \in Usable : g = <<m.region, m.inc, m.seq>>).granted]
      free == [r \in Regions |-> account[r].free]
  IN used + Sum(free, Regions) + Sum(amount, Pending) <= homes[1].state.charged + homes[2].state.charged + forgot

\* No grant is charged twice or applied twice.
Once == twice = {}

Symmetric == {f \in [Regions -> Regions] : \A r, s \in Regions : f[r] = f[s] => r = s}
=============================================================================
