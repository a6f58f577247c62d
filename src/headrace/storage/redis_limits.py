"""Shared limits in Redis: one Lua script an exchange, which Redis runs alone, with its own clock.

`headrace:limits:gateway:<id>`  operation, report, sequence, seen (s), leases as `l:<key>`
`headrace:limits:key:<key>`     `u:<window>` uses, `l:<gateway>` leases, `credits` and `debits`
`headrace:limits:epoch`         made once; a Redis without the known one has lost what it knew
`headrace:limits:counting`      until when (s) gateways tell what they hold, and nothing is granted

The rule is `lease_exchange.grant`, written again in Lua; one contract test runs both. Lua's numbers
are exact up to 2**53, so a budget or a tenant's credit of all time ends at 9 million dollars here.
"""

from typing import cast

import msgspec

from headrace.base.errors import ConfigurationError, Conflict, SetupError, Unavailable
from headrace.storage.lease_exchange import (
    Answers,
    Exchange,
    LimitKind,
    Standing,
    lease_lifetime_s,
    slice_divisor,
)
from headrace.storage.lease_store import too_late

exact_max = 2**53 - 1
prefix = "headrace:limits:"
timeout_s = 2.0

script = """
local said = cmsgpack.unpack(ARGV[1])
local prefix, lifetime, divisor, epoch = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]
if redis.call('GET', prefix .. 'epoch') ~= epoch then return 'LOST' end
local clock = redis.call('TIME')
local now = tonumber(clock[1]) + tonumber(clock[2]) / 1000000
local counting = tonumber(redis.call('GET', prefix .. 'counting') or '0') > now
local gateway, operation, report, sequence = said[1], said[2], said[3], said[4]
local record = prefix .. 'gateway:' .. gateway
local known = tonumber(redis.call('HGET', record, 'operation') or '0')
if operation <= known then return 'LATE' end
local new_report = report > tonumber(redis.call('HGET', record, 'report') or '0')
local function whole(number) return string.format('%.0f', number) end
redis.call('HSET', record, 'operation', whole(operation), 'report', whole(report),
  'sequence', whole(sequence), 'seen', string.format('%.6f', now))

if new_report then
  for _, use in ipairs(said[5]) do
    redis.call('HINCRBY', prefix .. 'key:' .. use[1], 'u:' .. whole(use[2]), whole(use[3]))
  end
end

local seen_of = {}
local function is_heard(name)
  if seen_of[name] == nil then
    seen_of[name] = tonumber(redis.call('HGET', prefix .. 'gateway:' .. name, 'seen') or '0')
  end
  return seen_of[name] > now - lifetime
end

local answers = {}
for position, ask in ipairs(said[6]) do
  local key, kind, capacity, oldest, committed = ask[1], ask[2], ask[3], ask[4], ask[5]
  local need, spare, expires, has_base, base = ask[6], ask[7], ask[8], ask[9], ask[10]
  local name = prefix .. 'key:' .. key
  local is_new = false
  if kind <= 1 and not expires and redis.call('HEXISTS', name, 'u:-1') == 0 then
    if has_base then
      for _, pair in ipairs(base) do
        redis.call('HINCRBY', name, 'u:' .. whole(pair[1]), whole(pair[2]))
      end
      redis.call('HSET', name, 'u:-1', '0')
    else
      is_new = true
    end
  end
  if kind == 3 then
    for field, value in pairs({credits = ask[13], debits = ask[14]}) do
      if value > tonumber(redis.call('HGET', name, field) or '0') then
        redis.call('HSET', name, field, whole(value))
      end
    end
  end
  local used, others, windows = 0, 0, {}
  local fields = redis.call('HGETALL', name)
  for index = 1, #fields, 2 do
    local field, value = fields[index], tonumber(fields[index + 1])
    local rest = string.sub(field, 3)
    if string.sub(field, 1, 2) == 'l:' then
      if rest ~= gateway and (not expires or is_heard(rest)) then others = others + value end
    elseif string.sub(field, 1, 2) == 'u:' then
      local window = tonumber(rest)
      if window >= math.max(0, oldest) then
        if kind == 0 then
          used = math.max(used, value)
        elseif kind == 1 then
          used = used + value
          windows[#windows + 1] = {window, value}
        end
      elseif window > -1 and window < ask[11] then
        redis.call('HDEL', name, field)
      end
    elseif kind == 3 then
      capacity = capacity + (field == 'credits' and value or -value)
    end
  end
  local lease, room = committed, 0
  if is_new then
    used, others, windows = 0, 0, {}
  else
    room = counting and 0 or math.max(0, capacity - used - others - committed)
    local extra = math.max(need, math.min(need + spare, math.floor(room / divisor)))
    extra = math.min(room, extra)
    if extra >= need then windows = {} end
    lease, room = committed + extra, room - extra
  end
  if lease > 0 then
    redis.call('HSET', name, 'l:' .. gateway, whole(lease))
    redis.call('HSET', record, 'l:' .. key, whole(lease))
  else
    redis.call('HDEL', name, 'l:' .. gateway)
    redis.call('HDEL', record, 'l:' .. key)
  end
  table.sort(windows, function(one, other) return one[1] < other[1] end)
  for _, pair in ipairs(windows) do pair[1], pair[2] = whole(pair[1]), whole(pair[2]) end
  answers[position] = {
    key, whole(lease), whole(room), whole(used), whole(others), is_new, windows}
end
if counting then return 'COUNTING' end
return cmsgpack.pack({string.format('%.6f', now), answers})
"""

_encode = msgspec.msgpack.Encoder().encode


class RedisLimits:
    """`SharedLimits` over Redis; safe from any thread."""

    def __init__(self, url: str, epoch: str) -> None:
        """`epoch` is what this platform's Redis was marked with; see `mark`.

        ConfigurationError if the address is none of Redis or the package is missing."""
        try:
            import redis  # noqa: PLC0415 -- an extra
        except ModuleNotFoundError as error:
            raise ConfigurationError(
                "limits in Redis need the package redis; pip install 'headrace[redis]'"
            ) from error
        self._errors = redis.RedisError
        try:
            self._client = redis.Redis.from_url(
                url, socket_timeout=timeout_s, socket_connect_timeout=timeout_s
            )
        except ValueError as error:
            raise ConfigurationError(
                f"--limits-url must look like redis://host:6379/0 ({error})"
            ) from error
        self._script = self._client.register_script(script)
        self._epoch = epoch

    def mark(self) -> None:
        """Say that this Redis, which must be new, keeps the limits of `epoch` from now on.

        SetupError if it keeps another platform's, or nothing on its disk."""
        try:
            self._client.set(f"{prefix}epoch", self._epoch, nx=True)
            found = self._client.get(f"{prefix}epoch")
            is_kept = self._client.config_get("appendonly").get("appendonly")
        except self._errors as error:
            raise self._away(error) from error
        if found != self._epoch.encode():
            raise SetupError(
                "this Redis keeps the limits of another platform, or of a lost one; give each "
                "platform its own"
            )
        if is_kept != "yes":
            raise SetupError(
                "this Redis keeps nothing on its disk, so that its restart would give every budget "
                "anew; set `appendonly yes`"
            )

    def recount(self) -> float:
        """Have a Redis that has lost its data count anew; how many seconds that takes.

        So long every gateway tells what it holds and nothing is granted. Then what was used is
        read from the ledger, limit by limit. What gateways report to this Redis meanwhile may
        count twice, which can only be too strict, and ends with the limit's period. SetupError if
        it has lost nothing, or is another platform's."""
        try:
            found = self._client.get(f"{prefix}epoch")
            if found is not None:
                raise SetupError(
                    "this Redis has its limits, or those of another platform; nothing is to be "
                    "counted anew"
                )
            seconds, microseconds = self._client.time()
            until_s = seconds + microseconds / 1e6 + lease_lifetime_s
            self._client.set(f"{prefix}counting", f"{until_s:.6f}")
        except self._errors as error:
            raise self._away(error) from error
        self.mark()
        return lease_lifetime_s

    def begin(self, gateway_id: str) -> Standing:
        """As `SharedLimits.begin`."""
        try:
            self._check_epoch()
            seconds, microseconds = self._client.time()
            known = cast(dict[bytes, bytes], self._client.hgetall(f"{prefix}gateway:{gateway_id}"))
        except self._errors as error:
            raise self._away(error) from error
        time_s = seconds + microseconds / 1e6
        if not known:
            return Standing(time_s)
        fields = {bytes(name).decode(): value for name, value in known.items()}
        return Standing(
            time_s,
            int(fields["operation"]),
            int(fields["report"]),
            int(fields["sequence"]),
            {name[2:]: int(value) for name, value in fields.items() if name.startswith("l:")},
        )

    def exchange(self, said: Exchange) -> Answers:
        """As `SharedLimits.exchange`."""
        check_exact(said)
        arguments = (_encode(said), prefix, lease_lifetime_s, slice_divisor, self._epoch)
        try:
            reply = self._script(args=arguments)
        except self._errors as error:
            raise self._away(error) from error
        if reply == b"LATE":
            raise too_late(said.gateway_id)
        if reply == b"LOST":
            raise self._lost()
        if reply == b"COUNTING":
            raise Unavailable(
                "the limits in Redis are being counted anew; gateways spend what they hold until "
                f"then, at most {lease_lifetime_s:.0f} s",
                retry_after_s=1.0,
            )
        return msgspec.msgpack.decode(reply, type=Answers, strict=False)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _check_epoch(self) -> None:
        if self._client.get(f"{prefix}epoch") != self._epoch.encode():
            raise self._lost()

    @staticmethod
    def _lost() -> Unavailable:
        return Unavailable(
            "Redis has lost the limits that it kept; restore its data, or run "
            "`headrace limits recount`",
            retry_after_s=1.0,
        )

    @staticmethod
    def _away(error: Exception) -> Unavailable:
        return Unavailable(f"Redis does not answer ({error}); it is tried again", retry_after_s=1.0)


def check_exact(said: Exchange) -> None:
    """Conflict for amounts that Lua's numbers cannot hold; nothing is granted by mistake."""
    for ask in said.asks:
        largest = ask.capacity if ask.kind is not LimitKind.CREDIT else 0
        if max(largest, ask.committed, ask.credits, ask.debits) > exact_max:
            raise Conflict(
                f"the limit {ask.key} is beyond what Redis can count exactly ({exact_max}); use "
                "the database for shared limits"
            )
