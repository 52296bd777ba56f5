// A development server that knows its base path. In the path form the proxy takes the prefix away
// before it forwards a request and says it in X-Forwarded-Prefix: so it is put back.
const tell = (word) => fetch(`${process.env.VITE_TELL}/${word}`)

function putBack(request) {
  const prefix = request.headers['x-forwarded-prefix']
  if (prefix && !request.url.startsWith(`${prefix}/`)) request.url = prefix + request.url
}

const behindPrefix = {
  name: 'behind-prefix',
  configureServer(server) {
    server.middlewares.use((request, _response, next) => {
      putBack(request)
      next()
    })
    server.httpServer.prependListener('upgrade', putBack)
    server.httpServer.on('listening', () => tell('listening'))
    server.ws.on('connection', () => tell('connected'))
  },
}

export default {
  base: process.env.BASE,
  cacheDir: 'cache',
  clearScreen: false,
  server: { host: '127.0.0.1', port: Number(process.env.PORT), strictPort: true },
  plugins: [behindPrefix],
}
