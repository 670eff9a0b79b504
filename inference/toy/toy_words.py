"""The words of the toy applications: eight themes of thirty English nouns or adjectives, each with its Spanish."""

_ANIMALS = """
cat gato  dog perro  horse caballo  cow vaca  sheep oveja  goat cabra
pig cerdo  hen gallina  duck pato  goose ganso  mouse ratón  rabbit conejo
fox zorro  wolf lobo  bear oso  lion león  tiger tigre  monkey mono
elephant elefante  camel camello  whale ballena  shark tiburón  fish pez  frog rana
snake serpiente  turtle tortuga  eagle águila  owl búho  bee abeja  ant hormiga
"""
_FOOD = """
bread pan  cheese queso  milk leche  egg huevo  rice arroz  soup sopa
meat carne  ham jamón  butter mantequilla  oil aceite  salt sal  sugar azúcar
honey miel  apple manzana  pear pera  lemon limón  grape uva  cherry cereza
peach durazno  melon melón  onion cebolla  garlic ajo  potato patata  carrot zanahoria
bean frijol  nut nuez  cake pastel  tea té  coffee café  wine vino
"""
_CLOTHES = """
shirt camisa  dress vestido  skirt falda  coat abrigo  jacket chaqueta  sweater suéter
shoe zapato  boot bota  sock calcetín  hat sombrero  cap gorra  scarf bufanda
glove guante  belt cinturón  tie corbata  button botón  pocket bolsillo  sleeve manga
collar cuello  ring anillo  necklace collar  bracelet pulsera  watch reloj  glasses gafas
purse bolso  apron delantal  vest chaleco  cloak capa  sandal sandalia  lace cordón
"""
_BODY = """
head cabeza  hair pelo  face cara  eye ojo  ear oreja  nose nariz
mouth boca  tooth diente  tongue lengua  chin barbilla  neck garganta  shoulder hombro
arm brazo  elbow codo  wrist muñeca  hand mano  finger dedo  nail uña
chest pecho  back espalda  waist cintura  hip cadera  leg pierna  knee rodilla
ankle tobillo  foot pie  heel talón  skin piel  bone hueso  heart corazón
"""
_NATURE = """
sun sol  moon luna  star estrella  sky cielo  cloud nube  rain lluvia
snow nieve  wind viento  storm tormenta  fire fuego  water agua  river río
lake lago  sea mar  beach playa  island isla  mountain montaña  hill colina
valley valle  forest bosque  tree árbol  leaf hoja  root raíz  flower flor
grass hierba  stone piedra  sand arena  earth tierra  desert desierto  cave cueva
"""
_HOUSE = """
door puerta  window ventana  wall pared  roof techo  floor suelo  stairs escalera
kitchen cocina  bedroom dormitorio  garden jardín  garage garaje  table mesa  chair silla
bed cama  sofa sofá  lamp lámpara  mirror espejo  carpet alfombra  curtain cortina
pillow almohada  blanket manta  plate plato  cup taza  glass vaso  fork tenedor
knife cuchillo  spoon cuchara  pan sartén  oven horno  key llave  broom escoba
"""
_WORK = """
teacher maestro  doctor médico  nurse enfermera  lawyer abogado  judge juez  baker panadero
cook cocinero  waiter camarero  farmer granjero  fisherman pescador  carpenter carpintero  plumber fontanero
painter pintor  writer escritor  singer cantante  dancer bailarín  actor actriz  soldier soldado
sailor marinero  pilot piloto  driver conductor  tailor sastre  barber barbero  butcher carnicero
miner minero  guard guardia  mayor alcalde  king rey  queen reina  clerk empleado
"""
_QUALITIES = """
red rojo  blue azul  green verde  yellow amarillo  white blanco  black negro
brown marrón  pink rosa  grey gris  purple morado  big grande  small pequeño
tall alto  short bajo  long largo  wide ancho  narrow estrecho  thick grueso
thin delgado  heavy pesado  light ligero  fast rápido  slow lento  hot caliente
cold frío  new nuevo  old viejo  clean limpio  dirty sucio  happy feliz
"""


def _pairs(text: str) -> dict[str, str]:
    words = text.split()
    return dict(zip(words[::2], words[1::2], strict=True))


THEMES: dict[str, dict[str, str]] = {
    "animals": _pairs(_ANIMALS),
    "food": _pairs(_FOOD),
    "clothes": _pairs(_CLOTHES),
    "body": _pairs(_BODY),
    "nature": _pairs(_NATURE),
    "house": _pairs(_HOUSE),
    "work": _pairs(_WORK),
    "qualities": _pairs(_QUALITIES),
}
SPANISH: dict[str, str] = {word: spanish for pairs in THEMES.values() for word, spanish in pairs.items()}
THEME_OF: dict[str, str] = {word: theme for theme, pairs in THEMES.items() for word in pairs}
