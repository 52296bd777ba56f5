// What answers are taken for. Arguments: the flavour, then <row>:<id>:<step>,<step>...
'use strict'

const { run, step } = require('./steps.cjs')
const { Sandbox } = require('e2b')

run(async () => {
  for (const argument of process.argv.slice(3)) {
    const [row, id, names] = argument.split(':')
    const sandbox = await Sandbox.connect(id)
    const { files, commands } = sandbox
    const output = async (line) => (await commands.run(line, { timeoutMs: 0 })).stdout
    const steps = {
      is_running: () => sandbox.isRunning(),
      read: () => files.read('/tmp/a'),
      exists: () => files.exists('/tmp/a'),
      kill: () => commands.kill(42),
      run: () => commands.run('echo hi'),
      long: () => commands.run('echo begun; sleep 600', { timeoutMs: 0, requestTimeoutMs: 0 }),
      vanish: () => commands.run('echo begun; vanish'),
      count: () => output('count 200 0.1'),
      count_long: () => output('count 600 0.1'),
      quiet: () => output('sleep 70; echo awake'),
    }
    for (const name of names.split(',')) {
      await step(`${row}/${name}`, async () => {
        const made = await steps[name]()
        return ['boolean', 'string'].includes(typeof made) ? made : null
      })
    }
  }
})
