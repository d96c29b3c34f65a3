-- Sends the requests of a file in turn, and prints what wrk has measured as one line of JSON.
-- Arguments: the file. Each request in it: a line "<bytes of the body> <bytes of its JSON part, or 0>", then the body.
-- Each request has a traceparent and an x-request-id of its own, as from a mesh or an instrumented client.

local heads, rests, last = {}, {}, 0

function init(args)
  local file = assert(io.open(args[1], "rb"))
  local line = string.format("POST %s HTTP/1.1\r\nHost: %s:%s\r\n", wrk.path, wrk.host, wrk.port)
  math.randomseed(os.time())
  while true do
    local sizes = file:read("*l")
    if not sizes then break end
    local size, json = sizes:match("(%d+) (%d+)")
    local kind = "Content-Type: application/json\r\n"
    if json ~= "0" then
      kind = "Content-Type: application/octet-stream\r\nInference-Header-Content-Length: " .. json .. "\r\n"
    end
    heads[#heads + 1] = line .. kind .. "Content-Length: " .. size .. "\r\ntraceparent: 00-"
    rests[#rests + 1] = "\r\n\r\n" .. (size == "0" and "" or file:read(tonumber(size)))
  end
  file:close()
end

function request()
  last = last % #heads + 1
  local a, b, c = math.random(0, 0x7fffffff), math.random(0, 0x7fffffff), math.random(1, 0x7fffffff)
  local trace, span = string.format("%08x%08x%08x%08x", a, b, c, last), string.format("%08x%08x", c, a)
  return heads[last] .. trace .. "-" .. span .. "-01\r\nx-request-id: " .. span .. trace .. rests[last]
end

function done(summary, latency, all)
  local errors = summary.errors
  io.write(string.format(
    '{"requests": %d, "seconds": %f, "p50_ms": %f, "p99_ms": %f, "refused": %d, "broken": %d}\n',
    summary.requests, summary.duration / 1e6, latency:percentile(50) / 1e3, latency:percentile(99) / 1e3,
    errors.status, errors.connect + errors.read + errors.write + errors.timeout))
end
