// Load that goes on until a file appears. Arguments: the flavour, that file, the id of a sandbox with
// envd, the id of one with an application. Prints how much of each kind was done, and what failed.
'use strict'

const fs = require('node:fs')
const { run, step } = require('./steps.cjs')
const { Sandbox } = require('e2b')

const [over, envd, application] = process.argv.slice(3)
const origin = `https://49983-${application}.${process.env.E2B_DOMAIN}`
const BODY = Buffer.alloc(300_000, 7)
const pause = (ms) => new Promise((tell) => setTimeout(tell, ms))

function expect(holds, what) {
  if (!holds) throw new Error(`unexpected: ${what}`)
}

// A client of undici: one connection at most, if it speaks HTTP/2.
function undici(name, options) {
  const { Agent, request } = require(name)
  const dispatcher = new Agent(options)
  return async (path, more = {}) => {
    const response = await request(origin + path, { dispatcher, ...more })
    const body = Buffer.from(await response.body.arrayBuffer())
    expect(response.statusCode === 200, response.statusCode)
    return body
  }
}

// fetch of undici: what the SDK is built on.
function fetching(name, options) {
  const { Agent, fetch } = require(name)
  const dispatcher = new Agent(options)
  return async (path, more = {}) => {
    const response = await fetch(origin + path, { dispatcher, ...more })
    const body = Buffer.from(await response.arrayBuffer())
    expect(response.status === 200, response.status)
    return body
  }
}

const ONE = { allowH2: true, connections: 1 }

async function get(call) {
  expect((await call('/')).toString() === 'small', 'a small response')
}

async function large(call) {
  expect((await call('/large')).length === 200_000, 'a large response')
}

async function stream(call) {
  expect((await call('/stream')).toString() === '0123456789', 'a stream')
}

async function upload(call) {
  expect((await call('/upload', { method: 'POST', body: BODY })).toString() === '300000', 'an upload')
}

function webSocket() {
  return new Promise((done, failed) => {
    const socket = new WebSocket(`${origin.replace('https', 'wss')}/ws`)
    let left = 20
    socket.onopen = () => socket.send('tick')
    socket.onmessage = async () => {
      await pause(20)
      if (--left > 0) return socket.send('tick')
      socket.onclose = done
      socket.close()
    }
    socket.onclose = socket.onerror = () => failed(new Error(`cut with ${left} messages left`))
  })
}

run(async () => {
  const sandbox = await Sandbox.connect(envd)
  const { files, commands } = sandbox
  const kinds = {
    'SDK commands.run': async () => {
      expect((await commands.run('echo hi')).stdout === 'hi\n', 'the output of a command')
    },
    'SDK commands.run, in pieces': async () => {
      const { stdout } = await commands.run('count 20 0.05')
      expect(stdout.split('\n').length === 21, 'the output of a long command')
    },
    'SDK files': async () => {
      await files.write('/tmp/load', BODY.toString())
      expect((await files.read('/tmp/load')).length === BODY.length, 'a file')
    },
    'WebSocket over TLS': webSocket,
  }
  for (const name of ['undici', 'undici8']) {
    const [one, h1] = [undici(name, ONE), undici(name, { connections: 4 })]
    kinds[`${name} h2, GET`] = () => get(one)
    const [two, three, four] = [undici(name, ONE), undici(name, ONE), undici(name, ONE)]
    kinds[`${name} h2, large`] = () => large(two)
    kinds[`${name} h2, stream`] = () => stream(three)
    kinds[`${name} h2, upload`] = () => upload(four)
    const five = fetching(name, ONE)
    kinds[`${name} h2, fetch in turn`] = async () => {
      await get(five)
      await pause(5)
      await stream(five)
      await upload(five)
    }
    const six = undici(name, ONE)
    const several = () => Promise.all([get(six), large(six), stream(six), get(six)])
    kinds[`${name} h2, four at once`] = several
    kinds[`${name} h1`] = () => Promise.all([get(h1), large(h1), stream(h1), upload(h1)])
  }
  // Clients that ask now and then: their connections are told while the load goes on. What undici 7
  // sends before it has read that fails, and what undici 8 cannot send again: that is not sent in
  // just that moment.
  for (const name of ['undici', 'undici8']) {
    for (let n = 1; n <= 4; n += 1) {
      const call = n % 2 ? undici(name, ONE) : fetching(name, ONE)
      const again = name === 'undici8' && n < 4
      kinds[`${name} h2, now and then ${n}`] = async () => {
        await [get, large, stream, upload][n - 1](call)
        await pause(again ? Math.random() * 6000 : 5500)
      }
    }
  }
  for (let n = 1; n <= 2; n += 1) {
    const idle = Sandbox.connect(envd)
    kinds[`SDK commands.run, now and then ${n}`] = async () => {
      await pause(5500)
      expect((await (await idle).commands.run('echo hi')).stdout === 'hi\n', 'the output of a command')
    }
  }
  const counts = {}
  await Promise.all(
    Object.entries(kinds).map(async ([name, work]) => {
      const count = (counts[name] = { done: 0, failed: [] })
      while (!fs.existsSync(over)) {
        try {
          await work()
          count.done += 1
        } catch (error) {
          count.failed.push(`${error.message}: ${error.cause?.message ?? error.code ?? ''}`)
          await pause(20)
        }
        await pause(1)
      }
    }),
  )
  for (const [name, count] of Object.entries(counts)) await step(name, () => count)
})
