-- Many takes, some of which reserve hits or end a reservation. A reservation charges its counter immediately. A record in
-- a second key holds the charge and its time, so that the counter can be corrected when the true amount is known.
--
-- The records of a counter are in one string, which is the counter's book. Nearly all books are small, and one SETRANGE changes a small
-- book. Rewriting the string of a large book for each record would be slow, so a large book is a hash and a sorted set instead, and
-- its string is IS_LARGE (holds_large.lua).
--
-- A step is the only take of its counter, so it cannot change the outcome of another step. A simple step is written immediately, without
-- tables, which is much cheaper. A step is simple if its book is small and well-formed, and no record has to be settled first.
-- Everything else (takes that share a counter, large books, records that have expired) is decided in holds_open.lua.
--
-- KEYS     the counters, the books, and then, for calls that may meet large books, the hash and the sorted set of each book
-- ARGV[1]  as in many.lua, without the takes that are steps or that commit or extend. A take that reserves has a 2 in place of the flag
--          for counting denied hits, and its number in its group in place of the repeat count
-- ARGV[2]  packed, little-endian: how many counters and books there are, how many records a small book may have, how many runs
--          of steps and how many open books follow (16 bit each), and where the open books start (32 bit).
--          A step is the only take of its counter, and reserves or commits. A run is of steps under equal limits: how many
--          (16 bit), the letter of the algorithm's part, the maximum number of records (32 bit), the longest time to live (64
--          bit), the limit, p1 to p3 (64 bit each); then for each step the indexes of its counter and its book (16 bit
--          each), its operation (one byte, as below), the ID (16 bytes), the amount and the time to live (64 bit each).
--          For each open book, whose counter has other takes too: the indexes of its counter and of itself (16 bit each),
--          letter of its algorithm's part, whether a reservation that expires is released (0, 1), how many records are settled
--          at most (16 bit; 0 if no take here depends on it), the maximum number of records (32 bit), the longest time to live
--          (64 bit), the limit, p1 to p3 (64 bit each). For each operation: where the takes of its group start
--          and end in ARGV[1] (32 bit each); the number of its open book (16 bit); its operation,
--          one byte: reserve (0), report (1), commit (2), commit or charge (3), extend (4), and 128
--          more for the first of a group; the ID (16 bytes); the time to live, the amount, and the smallest amount that may
--          be granted (64 bit each)
-- Reply    as in many.lua, but with the states after records were settled; after the states, for each step and then for each
--          operation: one byte: 0: no record; 1: a record, and that as it was found (5 times 64 bit); 2: too many reservations,
--          and when the first of them expires (64 bit)
--
-- After an error that starts with PARTLY, the takes may have counted. After all other errors, they have not.
--
-- A record that is due is settled before anything else is done. So the state in the reply already includes it, and backend.Settle
-- can continue from that state.

-- A book: 'R', how many records, until when the key lives at least, and when the first record is to be settled at the earliest.
-- Then the records, oldest first: ID, charged, reported, mark, expires, keep. Bytes after the last one are ignored.
local HEAD, HEAD_SIZE, OURS = '<BBi8i8', 18, 82
local RECORD, RECORD_SIZE, FIELDS = '<c16i8i8i8i8i8', 56, '<i8i8i8i8i8'
local FIRST = HEAD_SIZE + 1
local HEAD_AND_RECORD = '<BBi8i8c16i8i8i8i8i8'
local IS_LARGE = 'L'
local RUN, STEP, STEP_SIZE = '<I2BI4i8I8I8I8I8', '<I2I2Bc16i8i8', 37
local BOOK, OPERATION = '<I2I2BI2BI4i8I8I8I8I8', '<i4i4I2Bc16i8i8i8'
local SAME_ID = 16          -- reservations that have not expired may have the same ID
local LEAST_KEEP = 60000000 -- how long a record is kept at least after it has expired
local EXTRA = 60000000      -- a book lives longer than needed, so that its time to live need not be written with every change
local SPARE = 600           -- bytes that a book may have after its records before it is written anew
local RESERVE, REPORT, COMMIT_OR_CHARGE, EXTEND, BEGINS = 0, 1, 3, 4, 128
local FIXED, LOG, IN_FLIGHT, LYFT = byte('f'), byte('l'), byte('c'), byte('y')
local RESERVES_HITS = 2 -- in the field that flags for other takes whether denied hits count
local SETTLED = 8       -- records that a step settles at most
local NO_RECORD, A_RECORD, TOO_MANY = '\0', '\1', '\2'

local ASK_WITH_LARGE = 2147483647 -- again: the caller has to name the keys of large books too

local operations = ARGV[2]
local small, runs, open_count, open_at, runs_at = unpack_from('<I2I2I2I4', operations, 5)

local char = string.char

local function look(k, shape, limit, p1, p2, p3)
  local seen
  A[k], B[k], C[k], seen = READ[shape](KEYS[k], values[k], p1, p2, p3, limit)
  prepare(k, shape, 1, limit, p1, p2, p3)
  reply[k + 1] = pack('<I4', #seen) .. seen
end

-- The takes that are not steps: their open books, and their operations by group.
local books, groups = {}, {}
local FULL_TEXT = HEAD_SIZE + small * RECORD_SIZE
if #packed > 8 or open_count > 0 then
  local at = open_at
  for i = 1, open_count do
    local k, j, release, settled, shape, most, longest, limit, p1, p2, p3
    k, j, release, settled, shape, most, longest, limit, p1, p2, p3, at = unpack_from(BOOK, operations, at)
    books[i] = {
      k = k, j = j, shape = shape, release = release == 1, settled = settled, most = most, longest = longest,
      limit = limit, p1 = p1, p2 = p2, p3 = p3, reserving = 0,
    }
    if not A[k] then look(k, shape, limit, p1, p2, p3) end
  end
  while at < #operations do
    local from, to, book, does, id, ttl, amount, least
    from, to, book, does, id, ttl, amount, least, at = unpack_from(OPERATION, operations, at)
    if does >= BEGINS then
      does = does - BEGINS
      groups[#groups + 1] = { first = from, last = to }
    end
    book = books[book]
    if does == RESERVE then book.reserving = book.reserving + 1 end
    table.insert(groups[#groups], { book = book, does = does, id = id, ttl = ttl, amount = amount, least = least })
  end
  for i = 9, #packed, SIZE do
    local k, shape, _, _, _, _, _, limit, p1, p2, p3 = unpack_from(TAKE, packed, i)
    if not A[k] then look(k, shape, limit, p1, p2, p3) end
  end
end

-- Steps are written immediately, and a script that asks its caller again must not have written anything. So everything that can make the
-- script ask again is looked at first: counters whose read may set again, and large books whose keys are not named.
local at = runs_at
for _ = 1, runs do
  local count, shape, _, _, limit, p1, p2, p3, next = unpack_from(RUN, operations, at)
  if shape == IN_FLIGHT or shape == LOG or shape == LYFT or (shape == FIXED and p2 > 0) then
    for i = 0, count - 1 do look(unpack_from('<I2', operations, next + i * STEP_SIZE), shape, limit, p1, p2, p3) end
  end
  at = next + count * STEP_SIZE
end
if #KEYS == counters + book_count then -- the keys of large books are not named
  local reserving = {}
  for _, book in ipairs(books) do reserving[book.j] = book.reserving end
  for j = 1, book_count do
    local text, more = values[counters + j], reserving[j] or 1
    if text == IS_LARGE or more > small or (text and #text + more * RECORD_SIZE > FULL_TEXT and byte(text) == OURS
        and byte(text, 2) + more > small) then
      again = ASK_WITH_LARGE
    end
  end
end
if again then return pack('<i8I4', -now, again) end

local answers, said, left = {}, 0, {} -- answers about records for the reply, their number of entries, and steps that are not simple
local wrote, no_memory = false, false
local function failed(err)
  if wrote then return redis.error_reply('PARTLY written: ' .. (type(err) == 'table' and err.err or err)) end
  return type(err) == 'table' and err or redis.error_reply('ERR ' .. err)
end

local call, keys = redis.pcall, KEYS
at = runs_at
for _ = 1, runs do
  local count, shape, most, longest, limit, p1, p2, p3
  count, shape, most, longest, limit, p1, p2, p3, at = unpack_from(RUN, operations, at)
  local read, try, write, adjust, align = READ[shape], TRY[shape], WRITE[shape], ADJUST[shape], NEARER[shape]
  local latest = now + longest + SLACK
  local most_ends = latest + max(longest, LEAST_KEEP) + EXTRA -- one that seems to end later is from before a clock was set back
  for _ = 1, count do
    local k, j, does, id, amount, ttl
    k, j, does, id, amount, ttl, at = unpack_from(STEP, operations, at)
    local key, book, value, text = keys[k], keys[counters + j], values[k], values[counters + j]
    local n, simple, a, b, c, seen = 0, true, nil, nil, nil, nil
    if text then
      local kind
      kind, n = byte(text, 1, 2)
      simple = kind == OURS and #text >= HEAD_SIZE + n * RECORD_SIZE
    end
    if simple then
      a, b, c, seen = read(key, value, p1, p2, p3, limit)
      reply[k + 1] = (#seen == 8 and EIGHT or pack('<I4', #seen)) .. seen
      if align and not moved then
        a, b, c, moved = align(a, b, c, limit, p1, p2, p3)
      end
      if moved then
        simple, moved = false, nil
      end
    end
    if simple and does == RESERVE then
      local ends, due, allowed = 0, now + 1, nil
      if text then ends, due = unpack_from('<i8i8', text, 3) end
      simple = not no_memory and (n == 0 or (due > now and n < most and n < small and not find(text, id, FIRST, true)))
      if simple then allowed, a, b, c = try(a, b, c, amount, limit, p1, p2, p3) end
      if allowed then
        local expires = now + ttl
        local keep = expires + max(ttl, LEAST_KEEP)
        local anew, done = ends < keep or ends > most_ends or #text - n * RECORD_SIZE > SPARE, nil
        if anew then ends = keep + EXTRA end
        if n == 0 then
          text = pack(HEAD_AND_RECORD, OURS, 1, ends, keep, id, amount, 0, now, expires, keep)
        else
          text = pack(HEAD, OURS, n + 1, ends, min(due, keep)) .. sub(text, FIRST, HEAD_SIZE + n * RECORD_SIZE)
            .. pack(RECORD, id, amount, 0, now, expires, keep)
        end
        if anew then
          done = call('SET', book, text, 'PX', format(WHOLE, ceil((ends - now) / 1000)))
        else
          done = call('SETRANGE', book, '0', text)
        end
        if type(done) == 'table' and done.err then
          if not full(done) then return failed(done) end
          no_memory, simple = true, false
        else
          wrote = true
          local written, err = pcall(write, key, value, a, b, c, p1, p2, p3)
          if not written then return failed(err) end
        end
      end
      if simple then
        said = said + 1
        answers[said] = NO_RECORD
      end
    elseif simple then
      local i = n > 0 and find(text, id, FIRST, true)
      if not i then
        simple = does ~= COMMIT_OR_CHARGE
        if simple then
          said = said + 1
          answers[said] = NO_RECORD
        end
      elseif (i - FIRST) % RECORD_SIZE > 0 or i >= FIRST + n * RECORD_SIZE then
        simple = false
      else
        local charged, _, mark, expires, keep = unpack_from(FIELDS, text, i + 16)
        simple = keep > now and expires <= latest
        if simple then
          said = said + 2
          answers[said - 1], answers[said] = A_RECORD, sub(text, i + 16, i + RECORD_SIZE - 1)
          local done
          if n == 1 then
            done = call('SETRANGE', book, '1', '\0')
          else
            text = sub(text, 1, 1) .. char(n - 1) .. sub(text, 3, i - 1)
              .. sub(text, i + RECORD_SIZE, HEAD_SIZE + n * RECORD_SIZE)
            done = call('SETRANGE', book, '0', text)
          end
          if type(done) == 'table' then -- Redis rejects only the first write for lack of memory, and not one that frees some
            if not full(done) then return failed(done) end
            redis.call('DEL', book)
            if n > 1 then
              redis.call('SET', book, text, 'PX', format(WHOLE, ceil((unpack_from('<i8', text, 3) - now) / 1000)))
            end
            no_memory = false
          end
          wrote = true
          if amount ~= charged then
            a, b, c = adjust(a, b, c, min(mark, now), amount - charged, limit, p1, p2, p3, value)
            if a then
              local written, err = pcall(write, key, value, a, b, c, p1, p2, p3)
              if not written then return failed(err) end
            end
          end
        end
      end
    end
    if not simple then
      said = said + 1
      answers[said] = ''
      left[#left + 1] = {
        does = does, id = id, amount = amount, least = 0, ttl = ttl, answer = said,
        book = {
          k = k, j = j, shape = shape, settled = does == RESERVE and SETTLED or 0, most = most, longest = longest,
          limit = limit, p1 = p1, p2 = p2, p3 = p3,
        },
      }
    end
  end
end

if #packed == 8 and open_count == 0 and not left[1] then return table.concat(reply) .. table.concat(answers) end
