// Every call that an application makes of its sandbox. Arguments: the flavour, the id.
'use strict'

const { createHash, randomBytes } = require('node:crypto')
const { run, step } = require('./steps.cjs')
const { Sandbox } = require('e2b')

const LARGE = 50_000_000
const id = process.argv[3]
const digest = (bytes) => createHash('sha256').update(bytes).digest('hex')
const same = (one, other) => digest(one) === digest(other)

// What a command in the background writes, as it comes.
class Output {
  lines = []
  waiting = []
  onStdout = (text) => (this.waiting.length ? this.waiting.shift()(text) : this.lines.push(text))
  next() {
    if (this.lines.length) return this.lines.shift()
    return new Promise((tell) => this.waiting.push(tell))
  }
}

async function collect(stream) {
  const pieces = []
  for await (const piece of stream) pieces.push(piece)
  return Buffer.concat(pieces)
}

run(async () => {
  const sandbox = await Sandbox.connect(id)
  const { files, commands } = sandbox

  const steps = {
    async running() {
      return [sandbox.sandboxId === id, await sandbox.isRunning()]
    },
    async write() {
      const written = await files.write('/tmp/a b.txt', 'hello')
      return [written.name, written.type, written.path]
    },
    async read() {
      const text = await files.read('/tmp/a b.txt')
      const bytes = await files.read('/tmp/a b.txt', { format: 'bytes' })
      return [text, Buffer.from(bytes).toString()]
    },
    async missing() {
      return await files.read('/tmp/none')
    },
    async stream() {
      const sent = randomBytes(1_000_000)
      await files.write('/tmp/stream', new Blob([sent]).stream())
      return same(sent, await collect(await files.read('/tmp/stream', { format: 'stream' })))
    },
    async gzip() {
      const sent = Buffer.from('squeeze me '.repeat(20_000))
      await files.write('/tmp/gzip', new Blob([sent]), { gzip: true })
      const packed = await files.read('/tmp/gzip', { format: 'bytes', gzip: true })
      const plain = await files.read('/tmp/gzip', { format: 'bytes' })
      return [same(packed, sent), same(plain, sent)]
    },
    async empty() {
      await files.write('/tmp/empty', '')
      const bytes = await files.read('/tmp/empty', { format: 'bytes' })
      return [await files.read('/tmp/empty'), bytes.length]
    },
    async large() {
      const sent = randomBytes(LARGE)
      await files.write('/tmp/large', new Blob([sent]), { requestTimeoutMs: 300_000 })
      const got = await files.read('/tmp/large', { format: 'bytes', requestTimeoutMs: 300_000 })
      return [got.length, same(got, sent)]
    },
    async many() {
      const entries = [0, 1, 2].map((n) => ({ path: `/tmp/many/${n}`, data: `${n}` }))
      return (await files.write(entries)).map((one) => one.path)
    },
    async listed() {
      return (await files.list('/tmp/many')).map((one) => [one.name, one.type])
    },
    async exists() {
      return [await files.exists('/tmp/a b.txt'), await files.exists('/tmp/none')]
    },
    async info() {
      const entry = await files.getInfo('/tmp/a b.txt')
      return [entry.name, entry.type, entry.size]
    },
    async directories() {
      const made = [await files.makeDir('/tmp/new'), await files.makeDir('/tmp/new')]
      const moved = await files.rename('/tmp/new', '/tmp/newer')
      await files.remove('/tmp/newer')
      return [made, moved.path, await files.exists('/tmp/newer')]
    },
    async foreground() {
      const result = await commands.run('echo out; echo err >&2')
      return [result.exitCode, result.stdout, result.stderr]
    },
    async failing() {
      return await commands.run('echo gone; exit 3')
    },
    async callback() {
      const lines = []
      await commands.run('count 3 0.05', { onStdout: (line) => void lines.push(line) })
      return lines
    },
    async much() {
      return (await commands.run('spew 4096')).stdout.length
    },
    async background() {
      const handle = await commands.run('echo early; sleep 0.3; echo late', { background: true })
      const listed = (await commands.list()).map((one) => one.pid)
      return [listed.includes(handle.pid), (await handle.wait()).stdout]
    },
    async stdin() {
      const output = new Output()
      const options = { background: true, stdin: true, onStdout: output.onStdout }
      const handle = await commands.run('cat', options)
      const echoed = []
      for (const word of ['one', 'two']) {
        await commands.sendStdin(handle.pid, word)
        echoed.push(await output.next())
      }
      await commands.closeStdin(handle.pid)
      return [echoed, (await handle.wait()).stdout]
    },
    async attach() {
      const first = await commands.run('cat', { background: true, stdin: true })
      const second = await commands.connect(first.pid)
      await commands.sendStdin(first.pid, 'both')
      await commands.closeStdin(first.pid)
      return [(await second.wait()).stdout, (await first.wait()).stdout]
    },
    async kill() {
      const handle = await commands.run('sleep 600', { background: true })
      const killed = [await handle.kill()]
      await handle.wait().catch((error) => killed.push([error.constructor.name, error.exitCode]))
      return [...killed, await commands.kill(handle.pid)]
    },
    async timeout() {
      return await commands.run('sleep 600', { timeoutMs: 1000 })
    },
    async parallel() {
      const lines = Array.from({ length: 20 }, (_, n) => `echo ${n}; sleep 0.5; echo done ${n}`)
      const results = await Promise.all(lines.map((line) => commands.run(line)))
      return results.filter((result, n) => result.stdout === `${n}\ndone ${n}\n`).length
    },
    async watch() {
      let tell
      const first = new Promise((told) => (tell = told))
      const handle = await files.watchDir('/tmp/many', tell)
      await files.write('/tmp/many/new', 'x')
      const event = await first
      await handle.stop()
      return [event.name, event.type]
    },
  }
  for (const [name, work] of Object.entries(steps)) await step(name, work)
})
