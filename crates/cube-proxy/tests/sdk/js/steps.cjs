// Runs steps and prints what became of each as one line of JSON.
'use strict'

const dns = require('node:dns')

// Names of the test's own domain are this machine.
const domain = (process.env.E2B_DOMAIN ?? '').split(':')[0]
const lookup = dns.lookup
dns.lookup = (name, options, callback) => {
  if (!domain || !name.endsWith(`.${domain}`)) return lookup(name, options, callback)
  if (typeof options === 'function') return options(null, '127.0.0.1', 4)
  if (options.all) return callback(null, [{ address: '127.0.0.1', family: 4 }])
  return callback(null, '127.0.0.1', 4)
}

const done = {}

// Runs one step; an error is its result, not the end.
async function step(name, work) {
  try {
    done[name] = { ok: await work() }
  } catch (error) {
    done[name] = { error: error.constructor.name, message: String(error.message) }
  }
}

// Prints the results; open connections do not keep the process.
async function run(main) {
  await main()
  process.stdout.write(JSON.stringify(done) + '\n', () => process.exit(0))
}

module.exports = { run, step }
