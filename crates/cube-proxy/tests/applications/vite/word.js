export const word = 'one'
