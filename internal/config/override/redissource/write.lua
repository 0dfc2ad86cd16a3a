-- Writes and removes overrides, all of them or none.
-- KEYS: version, changes, domains; then records and order of each domain
-- ARGV: identifier of this write, time, author, most overrides; then for each edit: number of its domain, domain, field, expected
--   version ('': any), reason, record up to its version and time ('': remove it)
local id, at, author, most = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local head = redis.call('HMGET', KEYS[1], 'n', 'id', 'count')
local n, last, count = tonumber(head[1] or '0'), head[2] or '', tonumber(head[3] or '0')
local newest = redis.call('XREVRANGE', KEYS[2], '+', '-', 'COUNT', '1')
if newest[1] then n = math.max(n, tonumber(string.match(newest[1][1], '^%d+'))) end

local edits = {}
for i = 5, #ARGV, 6 do
  local d = 2 + 2 * tonumber(ARGV[i])
  local e = {records = KEYS[d], order = KEYS[d + 1], domain = ARGV[i + 1], field = ARGV[i + 2], reason = ARGV[i + 4], body = ARGV[i + 5]}
  e.before = redis.call('HGET', e.records, e.field)
  local found = e.before and string.match(string.sub(e.before, -80), '"version":"(%d+)","changed_at":"[^"]*"}$') or '0'
  if ARGV[i + 3] ~= '' and ARGV[i + 3] ~= found then return {'conflict', tostring(#edits), found} end
  if e.body ~= '' and not e.before then count = count + 1 end
  if e.body == '' and e.before then count = count - 1 end
  edits[#edits + 1] = e
end
if count > most and count > tonumber(head[3] or '0') then return {'full'} end

local versions = {'ok'}
for i, e in ipairs(edits) do
  if e.body == '' and not e.before then
    versions[i + 1] = '0'
  else
    n = n + 1
    local v, after = string.format('%.0f', n), ''
    if e.body ~= '' then after = e.body .. ',"version":"' .. v .. '","changed_at":"' .. at .. '"}' end
    -- First, because it fails if somebody has changed the stream by hand: then nothing is written.
    redis.call('XADD', KEYS[2], 'MAXLEN', '~', '10000', v .. '-0', 'id', id, 'prev', last, 'at', at, 'author', author, 'reason', e.reason,
      'before', e.before or '', 'after', after)
    last = id
    if after ~= '' then
      redis.call('HSET', e.records, e.field, after)
      redis.call('ZADD', e.order, '0', e.field)
      redis.call('SADD', KEYS[3], e.domain)
    else
      redis.call('HDEL', e.records, e.field)
      redis.call('ZREM', e.order, e.field)
      if redis.call('EXISTS', e.records) == 0 then redis.call('SREM', KEYS[3], e.domain) end
    end
    versions[i + 1] = v
  end
end
if last == id then
  redis.call('HSET', KEYS[1], 'n', string.format('%.0f', n), 'id', id, 'count', string.format('%.0f', count))
  redis.call('HSETNX', KEYS[1], 'born', id)
end
return versions
