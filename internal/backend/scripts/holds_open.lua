-- The rest: takes that are not steps, and steps that are not simple. Their counters and books are changed in tables, and written
-- once.

-- The books, by index: the value as it will be, how many records it has (-1: it is large), whether it is written anew (true)
-- or changed (false), and whether that removes records.
local texts, sizes, anew, removes = {}, {}, {}, {}
local open = {} -- by index: the books that are read record by record

for _, book in ipairs(books) do open[book.j] = book end
for _, o in ipairs(left) do
  local book = o.book
  open[book.j] = book
  if not A[book.k] then look(book.k, book.shape, book.limit, book.p1, book.p2, book.p3) end
end

local function number(n) return format(WHOLE, n) end

local function change(k, shape, a, b, c, p1, p2, p3)
  A[k], B[k], C[k] = a, b, c
  touched[k], P1[k], P2[k], P3[k] = shape, p1, p2, p3
end

-- Finds out how many records a book has.
local function size_of(j)
  local text, n = values[counters + j], 0
  if text then
    local kind
    kind, n = byte(text, 1, 2)
    if text == IS_LARGE then
      n = -1
    elseif kind ~= OURS or not n or #text < HEAD_SIZE + n * RECORD_SIZE then
      text, n = false, 0
      values[counters + j] = false
    end
  end
  texts[j], sizes[j] = text, n
  return n
end

local function milliseconds(time) return number(ceil((time - now) / 1000)) end

-- Writes a book as it is in the tables.
local function put(j)
  local key, text, done = KEYS[counters + j], texts[j], nil
  if sizes[j] == 0 then
    if not values[counters + j] then return end
    if anew[j] then
      redis.call('DEL', key)
      texts[j], values[counters + j] = false, false -- the next write starts anew
      return
    end
    done = redis.pcall('SETRANGE', key, '1', '\0')
  elseif anew[j] then
    done = redis.pcall('SET', key, text, 'PX', milliseconds(unpack_from('<i8', text, 3)))
  else
    done = redis.pcall('SETRANGE', key, '0', text)
  end
  if type(done) ~= 'table' or not done.err then return end
  if not removes[j] or not full(done) then error(done.err, 0) end
  -- Redis rejects only the first write for lack of memory, and not one that frees some.
  redis.call('DEL', key)
  if sizes[j] == 0 then
    texts[j], values[counters + j] = false, false
  else
    redis.call('SET', key, text, 'PX', milliseconds(unpack_from('<i8', text, 3)))
  end
end

-- When a book ends at the latest. One that seems to end later was written before a clock was set back.
local function latest_end(longest) return now + longest + max(longest, LEAST_KEEP) + SLACK + EXTRA end

-- Functions for large books, if there may be any.
local LARGE = {}

local function adjust(book, mark, delta)
  if delta == 0 then return end
  local k, shape = book.k, book.shape
  prepare(k, shape, 1, book.limit, book.p1, book.p2, book.p3)
  local value = not touched[k] and values[k]
  local a, b, c = ADJUST[shape](A[k], B[k], C[k], min(mark, now), delta, book.limit, book.p1, book.p2, book.p3, value)
  if a then change(k, shape, a, b, c, book.p1, book.p2, book.p3) end
end

-- Adds hits now, whether or not they fit.
local function take(book, hits)
  if hits == 0 then return end
  local k, shape = book.k, book.shape
  prepare(k, shape, 1, book.limit, book.p1, book.p2, book.p3)
  local _, a, b, c = TRY[shape](A[k], B[k], C[k], hits, book.limit, book.p1, book.p2, book.p3)
  change(k, shape, a, b, c, book.p1, book.p2, book.p3)
end

-- A record that ends later than any reservation can was made before the clock was set back.
local function clamp(book, r)
  local latest = now + book.longest
  if r.expires > latest + SLACK then
    r.expires, r.keep, r.mark = latest, min(r.keep, latest + max(book.longest, LEAST_KEEP)), min(r.mark, now)
    r.moved, book.changed[r.id] = true, true
  end
end

local function list_of(book, id)
  local list = book.lists[id]
  if not list then
    list = {}
    book.lists[id] = list
  end
  return list
end

-- Reads a book into book.all, its records with the oldest first, and book.lists, its records by ID.
local function read_book(book)
  local j = book.j
  book.lists, book.changed, book.more = {}, {}, 0
  local n = sizes[j] or size_of(j)
  if n < 0 then return LARGE.read(book) end
  book.all = {}
  for i = 0, n - 1 do
    local r = {}
    r.id, r.charged, r.reported, r.mark, r.expires, r.keep = unpack_from(RECORD, texts[j], FIRST + i * RECORD_SIZE)
    book.all[i + 1] = r
    table.insert(list_of(book, r.id), r)
    clamp(book, r)
  end
end

-- The records with an ID, oldest first.
local function records(book, id)
  if book.large and not book.lists[id] then book.lists[id] = LARGE.records(book, id) end
  return list_of(book, id)
end

-- The records that takes of the group in hand have found: no other take of it finds them too.
local claimed = {}

-- The oldest record of a list. One that the group in hand may add has not been charged yet.
local function oldest(list)
  for i, r in ipairs(list) do
    if r.charged and r.keep > now and not claimed[r] then return r, i end
  end
end

-- Removes a record, when everything is written.
local function remove(book, id, i)
  local r = table.remove(book.lists[id], i)
  r.gone, book.changed[id], removes[book.j] = true, true, true
  if book.large then LARGE.remove(book, r) end
end

-- The time at which a record is due.
local function due_at(book, r)
  if book.release and r.charged > r.reported then return r.expires end
  return r.keep
end

-- Puts an open book into the tables as it is to be written.
local function close(book)
  local j, all, ends, due = book.j, {}, 0, nil
  for _, r in ipairs(book.all) do
    if not r.gone then
      all[#all + 1] = pack(RECORD, r.id, r.charged, r.reported, r.mark, r.expires, r.keep)
      ends, due = max(ends, r.keep), min(due or r.keep, due_at(book, r))
    end
  end
  book.grows = #all > small
  local text, lives = texts[j], 0
  if text then lives = unpack_from('<i8', text, 3) end
  if lives < ends or lives > latest_end(book.longest) or (text and #text - #all * RECORD_SIZE > SPARE) then
    lives, anew[j] = ends + EXTRA, true
  end
  anew[j], sizes[j] = anew[j] or false, #all
  if #all > 0 then texts[j] = pack(HEAD, OURS, min(#all, 255), lives, due) .. table.concat(all) end
end

-- Writes a counter that settled records have changed, and reads it again.
local function rewrite(book)
  local k = book.k
  if not touched[k] then return end
  WRITE[book.shape](KEYS[k], values[k], A[k], B[k], C[k], book.p1, book.p2, book.p3)
  touched[k], values[k] = nil, redis.call('GET', KEYS[k])
  look(k, book.shape, book.limit, book.p1, book.p2, book.p3)
end

-- Settles the records that are due.
local function settle(book)
  if book.settled == 0 then return end
  if book.large then return LARGE.settle(book) end
  local due, released = {}, false
  for _, r in ipairs(book.all) do
    r.due = due_at(book, r)
    if r.due <= now then due[#due + 1] = r end
  end
  table.sort(due, function(r, s) return r.due < s.due end)
  for n = 1, min(#due, book.settled) do
    local r = due[n]
    if r.due < r.keep then
      adjust(book, r.mark, r.reported - r.charged)
      r.charged, book.changed[r.id], released = r.reported, true, true
    end
    if r.keep <= now then
      for i, other in ipairs(book.lists[r.id]) do
        if other == r then
          remove(book, r.id, i)
          break
        end
      end
    end
  end
  if not released then return end
  -- Written now, so that nothing is released again if a later command fails.
  local j = book.j
  removes[j] = true
  close(book)
  put(j)
  values[counters + j], anew[j], book.changed = texts[j], nil, {}
  if book.shrinks then
    LARGE.shrink(book)
    book.shrinks = false
  end
  rewrite(book)
end

-- Whether there may be one more record: an expired one is removed for it.
local function has_space(book)
  if book.large then return LARGE.has_space(book) end
  local live = 0
  for _, r in ipairs(book.all) do
    if not r.gone and r.expires > now then live = live + 1 end
  end
  return live < book.most
end

-- Removes one expired record if the book has too many records: the one that would be dropped first anyway.
local function make_space(book)
  if book.large then return LARGE.make_space(book) end
  local count, first = 0, nil
  for _, r in ipairs(book.all) do
    if not r.gone then
      count = count + 1
      if r.expires <= now and not (first and first.keep <= r.keep) then first = r end
    end
  end
  if count <= book.most or not first then return end
  for i, r in ipairs(book.lists[first.id]) do
    if r == first then return remove(book, r.id, i) end
  end
end

local function has_too_many(list)
  local live = 0
  for _, r in ipairs(list) do
    if r.expires > now then live = live + 1 end
  end
  return live >= SAME_ID
end

-- The answer about a record in the reply.
local function found(r)
  if not r then return NO_RECORD end
  return A_RECORD .. pack(FIELDS, r.charged, r.reported, r.mark, r.expires, r.keep)
end

-- Commits, reports and extends. These never deny.
local function correct(o)
  local book = o.book
  local list = records(book, o.id)
  local r, i = oldest(list)
  local answer = found(r)
  if not r then
    if o.does == COMMIT_OR_CHARGE then adjust(book, now, o.amount) end
    return answer
  end
  claimed[r] = true
  if o.does == EXTEND then
    if r.expires > now then
      r.expires = max(r.expires, now + o.ttl)
      r.keep = max(r.keep, r.expires + max(o.ttl, LEAST_KEEP))
      r.moved, book.changed[o.id] = true, true
      if book.shape == IN_FLIGHT and now > r.mark then -- otherwise the places would be free before the reservation ends
        adjust(book, r.mark, -r.charged)
        take(book, r.charged)
        r.mark = now
      end
    end
  elseif o.does == REPORT then
    r.reported = max(r.reported, o.amount)
    if r.reported > r.charged then
      adjust(book, r.mark, r.reported - r.charged)
      r.charged = r.reported
    end
    book.changed[o.id] = true
  else
    adjust(book, r.mark, o.amount - r.charged)
    remove(book, o.id, i)
  end
  return answer
end

-- The most hits up to amount that fit.
local function fits(k, shape, amount, limit, p1, p2, p3)
  prepare(k, shape, 1, limit, p1, p2, p3)
  local low, high = 0, min(amount, limit) + 1
  while high - low > 1 do
    local middle = floor((low + high) / 2)
    if TRY[shape](A[k], B[k], C[k], middle, limit, p1, p2, p3, true) == false then high = middle else low = middle end
  end
  return low
end

-- Charges a reservation, if its hits fit.
local function charge(o, k, shape, hits, limit, p1, p2, p3)
  if not o.record then return end
  prepare(k, shape, 1, limit, p1, p2, p3)
  local try = TRY[shape]
  local allowed, a, b, c = try(A[k], B[k], C[k], hits, limit, p1, p2, p3, hits == 0)
  if allowed == false and o.least > 0 then -- another take of the group was first
    hits = fits(k, shape, hits, limit, p1, p2, p3)
    if hits < o.least then return end
    allowed, a, b, c = try(A[k], B[k], C[k], hits, limit, p1, p2, p3)
  end
  if allowed == false then return end
  o.record.charged = hits
  if hits > 0 then change(k, shape, a, b, c, p1, p2, p3) end
end

-- When the first of the reservations expires.
local function first_expiry(book)
  local first
  for _, list in pairs(book.lists) do
    for _, r in ipairs(list) do
      if r.charged and r.expires > now then first = min(first or r.expires, r.expires) end
    end
  end
  if book.large then first = LARGE.first_expiry(book, first) end
  return first or 0
end

-- Finds out whether a record may be added for a reservation. Returns the answer for the reply.
local function reserve(o)
  local book = o.book
  local list = records(book, o.id)
  if has_too_many(list) or not has_space(book) then return TOO_MANY .. pack('<i8', first_expiry(book)) end
  local expires = now + o.ttl
  local keep = expires + max(o.ttl, LEAST_KEEP)
  o.record = { id = o.id, moved = true, reported = 0, mark = now, expires = expires, keep = keep }
  if book.large then LARGE.number(o.record, list) else table.insert(book.all, o.record) end
  list[#list + 1] = o.record
  book.more = book.more + 1
  return NO_RECORD
end

-- Keeps the record of a reservation if it was charged.
local function keep(o)
  local r, book = o.record, o.book
  if not r then return end
  local list = book.lists[o.id]
  if not r.charged then
    for i = #list, 1, -1 do
      if list[i] == r then table.remove(list, i) end
    end
    r.gone, book.more = true, book.more - 1
    return
  end
  book.changed[o.id] = true
  make_space(book)
  for i = 1, #list > SAME_ID and #list or 0 do -- an expired one is removed for it
    if list[i].expires <= now and (not book.release or list[i].charged == list[i].reported) then
      remove(book, o.id, i)
      break
    end
  end
end

-- Decides the takes of a group that are packed between from and to. reservations has the operations that reserve, by number.
--
-- If the group reserves, takes of the same counter are judged one after the other: each take together with the hits that the earlier
-- takes of the group add to that counter. Otherwise two reservations that fit one at a time could both be granted. Reservations that
-- accept fewer hits all get the same number, the smallest that any of them gets, because they stand for the same request.
local function vote(from, to, reservations)
  local together, ahead, allowed, least = reservations[1], {}, {}, nil
  local member_passed, denied, any_voted, any_passed = nil, false, false, false
  for at = from, to, SIZE do
    local k, shape, count_denied, vote, last, times, hits, limit, p1, p2, p3 = unpack_from(TAKE, packed, at)
    local o = count_denied == RESERVES_HITS and reservations[times]
    prepare(k, shape, times, limit, p1, p2, p3)
    local more = (o or hits > 0) and ahead[k] or 0
    local passed = TRY[shape](A[k], B[k], C[k], hits + more, limit, p1, p2, p3, true) ~= false
    local adds = (passed or count_denied == 1) and max(0, hits) or 0
    if o then
      if not passed and o.least > 0 then
        local left_over = fits(k, shape, hits + more, limit, p1, p2, p3) - more
        if left_over >= o.least then
          passed, adds = true, min(hits, left_over)
        end
      end
      if not o.record then
        passed, adds = false, 0
      elseif passed and o.least > 0 then
        least = min(least or adds, adds)
      end
    end
    if together then ahead[k] = (ahead[k] or 0) + adds end
    allowed[at] = passed
    if vote == 0 then
      denied = denied or not passed
    elseif vote == 1 then
      any_voted, member_passed = true, member_passed ~= false and passed
    end
    if last > 0 then any_passed, member_passed = any_passed or member_passed, nil end
  end
  denied = denied or (any_voted and not any_passed)
  local penalised = false
  for at = from, to, SIZE do
    local k, shape, count_denied, _, _, times, hits, limit, p1, p2, p3 = unpack_from(TAKE, packed, at)
    local o = count_denied == RESERVES_HITS and reservations[times]
    if count_denied == GUARDS then
      penalised = not allowed[at]
      punish(k, shape, at, allowed, times, p1)
    else
      if o then
        if not denied then charge(o, k, shape, o.least > 0 and allowed[at] and least or hits, limit, p1, p2, p3) end
      elseif hits < 0 or (not penalised and (not denied or (count_denied == 1 and not allowed[at]))) then
        add(k, shape, count_denied, times, hits, limit, p1, p2, p3)
      else
        prepare(k, shape, times, limit, p1, p2, p3)
      end
      penalised = false
    end
  end
end

-- Decides a group with operations, and returns the answers for the reply.
local function group(g)
  local answer, reservations = {}, {}
  for i, o in ipairs(g) do
    if o.does == RESERVE then
      answer[i] = reserve(o)
      reservations[#reservations + 1] = o
    end
  end
  for i, o in ipairs(g) do
    if o.does ~= RESERVE then answer[i] = correct(o) end
  end
  vote(g.first, g.last, reservations)
  for _, o in ipairs(reservations) do keep(o) end
  claimed = {}
  return table.concat(answer)
end

-- Decides a step.
local function alone(o)
  local book = o.book
  local answer = o.does == RESERVE and reserve(o) or correct(o)
  if o.does == RESERVE then
    charge(o, book.k, book.shape, o.amount, book.limit, book.p1, book.p2, book.p3)
    keep(o)
  end
  claimed = {}
  return answer
end
