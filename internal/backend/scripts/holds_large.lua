-- Large books, whose string is IS_LARGE. A step on a large book must not cost more with each record, so a step reads only the records that
-- it needs. A hash finds the records of an ID. For each record it holds the record's ordinal among the records with the same ID,
-- charged, reported, mark, expires, keep. A sorted set finds the records that are due: it has each record, as ID and
-- ordinal, by the time at which it is due.

local PART, PART_SIZE = '<Bi8i8i8i8i8', 41
local PAST = 4503599627370496 -- 2^52: the score of a record is its expiry, and later the time when it is dropped, minus PAST

-- Returns the answer of a command. If the key is not a book's, it returns nothing and deletes the key.
local function ours(key, answer)
  if type(answer) ~= 'table' or not answer.err then return answer end
  if not find(answer.err, 'WRONGTYPE', 1, true) then error(answer.err, 0) end
  redis.call('DEL', key)
end

local function parse(book, id, value)
  local list = {}
  for i = 1, #value - PART_SIZE + 1, PART_SIZE do
    local r = { id = id }
    r.ordinal, r.charged, r.reported, r.mark, r.expires, r.keep = unpack_from(PART, value, i)
    list[#list + 1] = r
    clamp(book, r)
  end
  return list
end

-- Reads a book if it is no longer large: if it is written then, it is written as a small one.
function LARGE.read(book)
  local at_keys = counters + book_count + 2 * book.j
  book.hash, book.set, book.removed, book.ended = KEYS[at_keys - 1], KEYS[at_keys], {}, 0
  local count = ours(book.set, redis.pcall('ZCARD', book.set)) or 0
  if count > small / 2 then
    book.large, book.count = true, count
    return
  end
  local found = ours(book.hash, redis.pcall('HGETALL', book.hash)) or {}
  book.all, book.shrinks = {}, true
  for i = 1, #found, 2 do
    if #found[i] == 16 then
      book.lists[found[i]] = parse(book, found[i], found[i + 1])
      for _, r in ipairs(book.lists[found[i]]) do table.insert(book.all, r) end
    end
  end
  table.sort(book.all, function(r, s) return r.mark < s.mark end)
  texts[book.j], sizes[book.j], anew[book.j] = false, #book.all, true
end

function LARGE.records(book, id)
  return parse(book, id, ours(book.hash, redis.pcall('HGET', book.hash, id)) or '')
end

-- Writes the records with an ID as they are in the list.
local function put_list(book, id)
  local list, all = book.lists[id], {}
  for i, r in ipairs(list) do all[i] = pack(PART, r.ordinal, r.charged, r.reported, r.mark, r.expires, r.keep) end
  if all[1] then
    redis.call('HSET', book.hash, id, table.concat(all))
  else
    redis.call('HDEL', book.hash, id)
  end
end

-- Finds the record that a member of the sorted set stands for.
local function of_member(book, member)
  local id, ordinal = sub(member, 1, 16), byte(member, 17)
  for i, r in ipairs(records(book, id)) do
    if r.ordinal == ordinal then return r, id, i end
  end
end

local function add_member(book, r) redis.call('ZADD', book.set, number(r.expires), r.id .. char(r.ordinal)) end

-- Drops the record that a member of the sorted set stands for.
local function drop(book, member)
  redis.call('ZREM', book.set, member)
  local r, id, i = of_member(book, member)
  if r then
    table.remove(book.lists[id], i)
    put_list(book, id)
  end
end

function LARGE.settle(book)
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', book.set, number(now + book.longest + SLACK + 1), '+inf', 'LIMIT', 0, book.settled)) do
    of_member(book, member) -- which clamps it
  end
  local ended = redis.call('ZRANGEBYSCORE', book.set, '0', number(now), 'LIMIT', 0, book.settled)
  for _, member in ipairs(ended) do
    -- First, because it needs no memory, and Redis rejects only the first write for lack of it.
    redis.call('ZREM', book.set, member)
    local r, id = of_member(book, member)
    if r then
      if book.release and r.charged > r.reported then
        adjust(book, r.mark, r.reported - r.charged)
        r.charged = r.reported
        put_list(book, id)
      end
      redis.call('ZADD', book.set, number(r.keep - PAST), member)
    end
  end
  local room = book.settled - #ended
  if room > 0 then
    local old = redis.call('ZRANGEBYSCORE', book.set, '-inf', number(now - PAST), 'LIMIT', 0, room)
    for _, member in ipairs(old) do drop(book, member) end
  end
  book.count = nil
  rewrite(book)
end

-- Removes a record, when everything is written.
function LARGE.remove(book, r)
  book.removed[#book.removed + 1] = r.id .. char(r.ordinal)
  book.more = book.more - 1
  if r.expires <= now then book.ended = book.ended + 1 end
end

function LARGE.has_space(book)
  book.count = book.count or redis.call('ZCARD', book.set)
  if book.count + book.more < book.most then return true end
  book.expired = book.expired or redis.call('ZCOUNT', book.set, '-inf', '(0')
  return book.count + book.more - book.expired + book.ended < book.most
end

function LARGE.make_space(book)
  if book.count + book.more <= book.most then return end
  local ended = redis.call('ZRANGEBYSCORE', book.set, '-inf', '(0', 'LIMIT', 0, #book.removed + 1)
  for _, member in ipairs(ended) do
    local r, id, i = of_member(book, member)
    if r and r.expires <= now then return remove(book, id, i) end -- otherwise it is a new record with the ordinal of a removed one
  end
end

-- Gives a record an ordinal that no other one with the same ID has.
function LARGE.number(record, list)
  local used = {}
  for _, r in ipairs(list) do used[r.ordinal] = true end
  record.ordinal = 0
  while used[record.ordinal] do record.ordinal = record.ordinal + 1 end
end

function LARGE.first_expiry(book, first)
  local stored = redis.call('ZRANGEBYSCORE', book.set, '0', '+inf', 'WITHSCORES', 'LIMIT', 0, 100)
  for i = 1, #stored, 2 do
    if not book.lists[sub(stored[i], 1, 16)] then
      local expires = tonumber(stored[i + 1])
      return min(first or expires, expires)
    end
  end
  return first
end

-- Writes the changes that need no memory.
function LARGE.write_removed(book)
  for _, member in ipairs(book.removed) do redis.call('ZREM', book.set, member) end
  for id in pairs(book.changed) do
    if not book.lists[id][1] then put_list(book, id) end
  end
end

-- Makes the keys of a large book live as long as its records are needed.
local function prolong(book, keep, always)
  local lives = ceil((keep - now) / 1000)
  if book.release then lives = max(lives, redis.call('PTTL', KEYS[book.k])) end
  if not always and redis.call('PTTL', book.hash) >= lives and redis.call('PTTL', book.set) >= lives then return end
  lives = number(lives + EXTRA / 1000)
  redis.call('PEXPIRE', book.hash, lives)
  redis.call('PEXPIRE', book.set, lives)
  redis.call('SET', KEYS[counters + book.j], IS_LARGE, 'PX', lives)
end

function LARGE.write(book)
  local last
  for id in pairs(book.changed) do
    local list = book.lists[id]
    if list[1] then put_list(book, id) end
    for _, r in ipairs(list) do
      if r.moved then
        add_member(book, r)
        last = max(last or 0, r.keep)
      end
    end
  end
  if last then prolong(book, last) end
end

-- Writes a small book that has become large.
function LARGE.grow(book)
  local at_keys, last = counters + book_count + 2 * book.j, 0
  book.hash, book.set = KEYS[at_keys - 1], KEYS[at_keys]
  redis.call('SET', KEYS[counters + book.j], IS_LARGE, 'PX', number(EXTRA / 1000))
  redis.call('DEL', book.hash, book.set)
  for id, list in pairs(book.lists) do
    if list[1] then
      for i, r in ipairs(list) do
        r.ordinal, last = i - 1, max(last, r.keep)
        add_member(book, r)
      end
      put_list(book, id)
    end
  end
  prolong(book, last, true)
end

-- Removes the remaining keys of a large book that has become small.
function LARGE.shrink(book) redis.call('DEL', book.hash, book.set) end
